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
    def check(self, name, sources):
        """Exports each source and compares; `sources`: {name of the export: (source, options)}."""
        _, arrays = reference(name)
        np.savez(self.dir / f"{name}.npz", tokens=arrays["tokens"], doc_offsets=arrays["doc_offsets"], loss_mask=arrays["loss_mask"])
        for out, (source, options) in sources.items():
            self.export(source, out, *options)
        found = torch_python.call(PYTHON, "losses", self.dir / f"{name}.npz", *(self.dir / out for out in sources))
        for out in sources:
            theirs = found[str(self.dir / out)]
            self.assertEqual(theirs["odd"], [], "no tensor missing, left over, or of another shape")
            ours = self.evaluated(name, self.dir / out, ranks=2)
            self.assertLess(abs(ours - theirs["loss"]), 1e-5 * abs(theirs["loss"]), f"{out}: {ours}, transformers {theirs['loss']}")
        return {out: found[str(self.dir / out)]["loss"] for out in sources}

    def test_every_fixture_as_imported_and_as_trained(self):
        for i, name in enumerate(ALL):
            with self.subTest(name):
                folder = support.FIXTURES / name / "hf"
                self.imported(folder, f"{name}.h5")
                strategy = ("full_shard", "no_shard", "shard_opt")[i % 3]
                self.train(name, self.dir / f"{name}.h5", run=name, ranks=2, steps=2, strategy=strategy)
                losses = self.check(name, {f"{name}-in": (self.dir / f"{name}.h5", ()),
                                           f"{name}-tuned": (self.dir / name / "latest", ("--max-shard-size", "40KB")),
                                           f"{name}-bf16": (self.dir / name / "latest", ("--dtype", "bf16"))})
                self.assertLess(losses[f"{name}-tuned"], 0.9 * losses[f"{name}-in"])

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
        theirs = torch_python.call(PYTHON, "losses", self.dir / "story.npz", self.dir / "story")[str(self.dir / "story")]
        self.assertEqual(theirs["odd"], [])
        done = support.run("eval", f"--model.weights={self.dir / 'story'}", f"--data.tokens={self.dir / 'story.h5'}",
                           "--sharding.strategy=no_shard", "--precision.compute=fp32")
        ours = json.loads(done.stdout.splitlines()[-1])["loss"]
        self.assertLess(abs(ours - theirs["loss"]), 1e-5 * theirs["loss"])


if __name__ == "__main__":
    unittest.main()
