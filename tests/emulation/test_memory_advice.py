"""Where a plan does not fit, each key that the error names is tried: the same run with that key changed is refused, too, and needs as much less as was
said."""
import re
import unittest

import h5py
import numpy as np
from device_case import DeviceCase, emulated, support

UNITS = {"bytes": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10}
# no change of the deck makes a plan fit: products alone have 32 MiB
LITTLE = 40_000_000


def mebibytes(number, unit):
    return float(number) * UNITS[unit]


class Advice(DeviceCase):
    def refused(self, name="llama_biases", ranks=2, lengths=(1000, 600), changes=(), memory=LITTLE, capability="90", **keys):
        """The error of a run that does not fit: what it needs in MiB, and {change of the deck: what it would free}."""
        path = self.dir / "tokens.h5"
        with h5py.File(path, "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "tokenizer": ""})
            file["train/tokens"] = np.arange(sum(lengths), dtype="u2") % 90
            file["train/doc_offsets"] = np.cumsum([0, *lengths]).astype("u8")
        deck = {"model.weights": support.FIXTURES / name / "hf", "data.tokens": path, "run.steps": 1, "run.directory": self.dir / "run",
                "batch.sequences": 2, "device.kind": "cuda", "device.threads": 1, **{k.replace("__", "."): v for k, v in keys.items()}}
        with emulated(memory_bytes=memory, capability=capability):
            said = support.run("train", *(f"--{k}={v}" for k, v in {**deck, **dict(changes)}.items()), ranks=ranks, expect=5).stderr
        needed = re.search(r"([\d.]+) (KiB|MiB) of memory are needed on", said)
        self.assertIsNotNone(needed, said)
        text = re.sub(r" \(rank \d+, host [^)]*\)\s*$", "", said[said.index("largest first: "):].split("\n")[0].split(". ", 1)[1])
        found = {}
        for item in text.split(", "):
            parts = re.fullmatch(r"(.*?)(?: would free)? ([\d.]+) (bytes|KiB|MiB)", item)
            if parts:
                found[parts[1]] = mebibytes(*parts.groups()[1:])
        return mebibytes(*needed.groups()), found, text

    def assert_true_advice(self, *wanted, **run):
        """wanted: keys that must be named, in the order of what they free."""
        needed, advice, text = self.refused(**run)
        for first in wanted:
            self.assertTrue(any(change.startswith(first) for change in advice), f"{first} is not in: {text}")
        for change, freed in advice.items():
            with self.subTest(change):
                keys = [pair.split(" = ") for pair in change.removesuffix(" (cuts documents)").split(" and ")]
                self.assertAlmostEqual(needed - self.refused(changes=keys, **run)[0], freed, delta=0.16)
        return advice, text

    def test_a_long_document(self):
        run = {"ranks": 1, "lengths": (20000, 300), "precision__compute": "bf16", "precision__gradients": "bf16"}
        advice, text = self.assert_true_advice("data.max_sequence = 9984 (cuts documents)", **run)
        self.assertGreater(advice["data.max_sequence = 9984 (cuts documents)"], 10)
        self.assertNotIn("batch.micro_tokens", text)

    def test_a_long_document_and_micro_batches_of_the_deck(self):
        self.assert_true_advice("data.max_sequence = 9984 and batch.micro_tokens = 10500 (cuts documents)", "precision.compute",
                                ranks=1, lengths=(20000, 300), batch__micro_tokens=21000, precision__compute="fp32")

    def test_memory_of_libraries(self):
        common = {"name": "mistral_sliding", "precision__compute": "bf16", "device__attention": "cudnn"}
        advice, text = self.assert_true_advice("device.attention = own", "communication.backend = mpi", "batch.micro_tokens = 2048", **common)
        self.assertAlmostEqual(advice["communication.backend = mpi"], 48, delta=0.1)
        self.assertNotIn("sharding.strategy = full_shard", text)
        self.assertNotIn("data.max_sequence", text)
        for keys in ({"device__attention": "own"}, {"communication__backend": "mpi"}):
            _, advice, _ = self.refused(**{**common, **keys})
            for key, value in keys.items():
                self.assertFalse(any(change.startswith(key.replace("__", ".")) for change in advice), f"{key} is {value} already")

    def test_the_keys_of_a_row_of_ones_own(self):
        row = {f"sharding__{state}": "replica" for state in ("parameters", "gradients", "optimizer")}
        _, text = self.assert_true_advice("sharding.optimizer = world", name="mistral_sliding", **row)
        self.assertNotIn("sharding.strategy", text)
        _, advice, _ = self.refused(name="mistral_sliding", sharding__strategy="no_shard")
        self.assertIn("sharding.strategy = shard_opt", advice)

    def test_what_only_some_ranks_can_compute_in(self):
        for capability in ("90,75", "75,90"):
            self.assertNotIn("precision.compute", self.refused(capability=capability)[2])
        self.assertIn("precision.compute = bf16", self.refused(capability="90,80", precision__compute="fp32")[1])


if __name__ == "__main__":
    unittest.main()
