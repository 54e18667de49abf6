"""Hugging Face transformers loads every export whole, and computes the loss that sherd computes."""
import json
import unittest

import h5py
import numpy as np

import support
import torch_python
from fixture_case import ALL, FixtureCase, reference

PYTHON, REASON = torch_python.find()


@unittest.skipIf(PYTHON is None, REASON)
class Transformers(FixtureCase):
    def losses_there(self, pairs):
        """{folder: loss} of pairs (tokens, folder): one process for all, as it is slow to start. Every tensor must have found its place."""
        found = torch_python.call(PYTHON, "losses", *(part for pair in pairs for part in pair))
        for folder, result in found.items():
            self.assertEqual(result["odd"], [], f"{folder}: tensors missing, left over, or of another shape")
        return {folder: result["loss"] for folder, result in found.items()}

    def prepare(self, i, name):
        """Exports of a fixture: as imported, as trained, in another type. Returns their folders."""
        self.imported(support.FIXTURES / name / "hf", f"{name}.h5")
        self.train(name, self.dir / f"{name}.h5", run=name, ranks=2, steps=2, strategy=("full_shard", "no_shard", "shard_opt")[i % 3])
        self.export(self.dir / f"{name}.h5", f"{name}-in")
        self.export(self.dir / name / "latest", f"{name}-tuned", "--max-shard-size", "40KB")
        self.export(self.dir / name / "latest", f"{name}-bf16", "--dtype", "bf16")
        return [self.dir / f"{name}-{kind}" for kind in ("in", "tuned", "bf16")]

    def test_every_fixture_as_imported_and_as_trained(self):
        folders = {name: self.prepare(i, name) for i, name in enumerate(ALL)}
        pairs = []
        for name in ALL:
            arrays = reference(name)[1]
            np.savez(self.dir / f"{name}.npz", **{key: arrays[key] for key in ("tokens", "doc_offsets", "loss_mask")})
            pairs += [(self.dir / f"{name}.npz", folder) for folder in folders[name]]
        theirs = self.losses_there(pairs)
        for name in ALL:
            for folder in folders[name]:
                with self.subTest(folder.name):
                    expected = theirs[str(folder)]
                    self.assertLess(abs(self.evaluated(name, folder, ranks=2) - expected), 1e-5 * expected)
            self.assertLess(theirs[str(self.dir / f"{name}-tuned")], 0.9 * theirs[str(self.dir / f"{name}-in")], name)

    def test_the_story_model(self):
        folder = support.ROOT / "inputs" / "stories260k-hf"
        stored = support.read_safetensors(support.FIXTURES / "stories_genesis" / "tokens.safetensors")
        offsets = stored["validation/doc_offsets"][1].astype("i8")[:21]
        tokens = stored["validation/tokens"][1][:offsets[-1]]
        mask = np.ones(len(tokens), "u1")
        mask[offsets[:-1]] = 0
        np.savez(self.dir / "story.npz", tokens=tokens, doc_offsets=offsets, loss_mask=mask)
        with h5py.File(self.dir / "story.h5", "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1})
            for group in ("train", "validation"):
                file[f"{group}/tokens"], file[f"{group}/doc_offsets"] = tokens.astype("u2"), offsets.astype("u8")
        self.export(folder, "story", "--max-shard-size", "300KB")
        expected = self.losses_there([(self.dir / "story.npz", self.dir / "story")])[str(self.dir / "story")]
        done = support.run("eval", f"--model.weights={self.dir / 'story'}", f"--data.tokens={self.dir / 'story.h5'}",
                           "--sharding.strategy=no_shard", "--precision.compute=fp32")
        ours = json.loads(done.stdout.splitlines()[-1])["loss"]
        self.assertLess(abs(ours - expected), 1e-5 * expected)


if __name__ == "__main__":
    unittest.main()
