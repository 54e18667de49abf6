"""Training is exact: the curve of float64 PyTorch on any number of ranks, and stops that leave no trace."""
import re
import shutil
import unittest

import h5py
import numpy as np

import support
from training_case import CURVE, STORY, TrainingCase, parse


class Curve(TrainingCase):
    def micro_batches(self):
        longest = max(len(d) for group in self.documents.values() for d in group)
        return {"longest document": longest, "512 tokens": 512, "whole step": 4096}

    def test_forty_steps_at_every_world_size(self):
        sizes = self.micro_batches()
        for ranks, micro in [(r, m) for r in range(1, 6) for m in sizes]:
            with self.subTest(ranks=ranks, micro=micro):
                name = f"{ranks} {micro}"
                self.train(name, ranks, **self.curve_keys(batch__micro_tokens=sizes[micro]))
                self.assert_on_curve(name)
                self.assert_validations(name)
                micro_steps = [line["micro_steps"] for line in self.metrics(name, "step")]
                if micro == "whole step":
                    self.assertEqual(set(micro_steps), {1})
                else:
                    self.assertGreater(max(micro_steps), 1)

    def test_unequal_micro_batches(self):
        self.train("run", 2, **self.curve_keys(run__stop_step=5, batch__micro_tokens="4096,256"))
        self.assert_on_curve("run", last=5)

    def test_bf16(self):
        self.train("run", 2, **self.curve_keys(precision__compute="bf16"))
        losses, expected = self.losses("run"), [line["loss"] for line in CURVE["steps"]]
        self.assert_close(losses, expected, 1e-2)
        self.assert_close(losses[-1:], expected[-1:], 2e-3)
        # rounding must show somewhere, else this was fp32
        self.assertGreater(max(abs(a - b) / b for a, b in zip(losses, expected)), 1e-5)


class Resume(TrainingCase):
    def test_rerun_and_resume_give_the_same_bits(self):
        keys = self.curve_keys(batch__micro_tokens=512)
        for name in ("once", "twice"):
            self.train(name, 2, **keys)
        self.train("stopped", 2, **keys, run__stop_step=20)
        self.assertEqual([line["step"] for line in self.metrics("stopped", "step")], list(range(1, 21)))
        self.assertIn("after step 20", self.train("stopped", 2, **keys).stdout)
        for other in ("twice", "stopped"):
            for key in ("step", "loss", "grad_norm", "lr", "targets", "epoch"):
                self.assertEqual([line[key] for line in self.metrics(other, "step")], [line[key] for line in self.metrics("once", "step")],
                                 f"{other}: {key}")
            self.assert_same_bits(self.state(other), self.state("once"))
            self.assertEqual(self.metrics(other, "validation")[-1], self.metrics("once", "validation")[-1])
        self.assertTrue(self.metrics("stopped", "resume"))

    def test_threads_give_the_same_bits_each_time(self):
        for name in ("once", "twice"):
            self.train(name, **self.curve_keys(run__stop_step=5, device__threads=2))
            self.assert_on_curve(name, last=5)
        self.assertEqual(self.losses("twice"), self.losses("once"))
        self.assert_same_bits(self.state("twice"), self.state("once"))

    def test_resume_on_other_world_sizes(self):
        keys = self.curve_keys()
        self.train("four", 4, **keys, run__stop_step=20)
        for ranks in (1, 2, 3, 5):
            with self.subTest(ranks=ranks):
                name = f"from four to {ranks}"
                shutil.copytree(self.dir / "four", self.dir / name, symlinks=True)
                self.train(name, ranks, **keys)
                self.assert_on_curve(name)
                self.assert_close([self.metrics(name, "validation")[-1]["loss"]], [CURVE["validation_after"]], 3e-6)

    def test_steps_past_the_checkpoint_are_set_aside(self):
        keys = self.curve_keys(run__stop_step=6, checkpoint__every=3)
        self.train("run", **keys)
        shutil.rmtree(self.dir / "run" / "step-00000006")
        torn = '{"event":"step","step":7,"los'
        with open(self.dir / "run" / "metrics.jsonl", "a") as file:
            file.write(torn)
        done = self.train("run", **keys)
        self.assertIn("latest", done.stderr)
        self.assertEqual([line["step"] for line in self.metrics("run", "step")], list(range(1, 7)))
        self.assert_on_curve("run", last=6)
        aside = (self.dir / "run" / "metrics.set-aside.jsonl").read_text().splitlines()
        self.assertEqual([parse(line)["step"] for line in aside if '"step","step"' in line and line != torn], [4, 5, 6])
        self.assertIn(torn, aside)


class WhatARunLeaves(TrainingCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls()
        case.dir = cls.shared
        case.train("run", 3, **case.curve_keys())

    def setUp(self):
        super().setUp()
        self.dir = self.shared

    def test_manifest_shows_whole_tensors(self):
        run = self.shared / "run"
        self.assertEqual((run / "latest").readlink().name, "step-00000040")
        out = self.shared / "exported"
        support.run("export", "--from", run / "latest", "--to", out)
        exported, imported = support.read_folder(out), support.read_folder(STORY)
        with h5py.File(run / "latest" / "manifest.h5") as file:
            for name, value in (("sherd.kind", "checkpoint"), ("sherd.version", 1), ("step", 40), ("epoch", 0)):
                self.assertEqual(file.attrs[name], value, name)
            self.assertEqual(file.attrs["config"], (STORY / "config.json").read_text())
            self.assertEqual(file.attrs["deck"], (run / "deck.ini").read_text())
            for group in ("parameters", "exp_avg", "exp_avg_sq"):
                self.assertEqual(sorted(file[group]), sorted(imported))
                for name, (_, array) in imported.items():
                    stored = file[group][name]
                    self.assertEqual((stored.shape, stored.dtype), (array.shape, np.float32), name)
                    self.assertTrue(np.isfinite(stored[:]).all(), f"{group}/{name}")
                    self.assertTrue(stored.is_virtual, name)
            for name, (dtype, array) in exported.items():
                self.assertEqual(dtype, "F32")
                np.testing.assert_array_equal(file["parameters"][name][:], array)
            self.assertNotIn("lm_head.weight", file["parameters"])
        self.assertEqual(sorted(exported), sorted(imported))
        for name in ("config.json", "tokenizer.json"):
            self.assertEqual((out / name).read_bytes(), (STORY / name).read_bytes())

    def test_three_ranks_share_the_writing(self):
        sizes = [path.stat().st_size for path in sorted((self.shared / "run" / "latest").glob("rank-*.h5"))]
        self.assertEqual(len(sizes), 3)
        self.assertLess(max(sizes), 1.5 * min(sizes))

    def test_metrics_hold_digits_and_every_key(self):
        text = (self.shared / "run" / "metrics.jsonl").read_text()
        for found in re.finditer(r'"(?:loss|grad_norm|perplexity)":([^,}]+)', text):
            self.assertGreaterEqual(len(re.sub(r"e.*|\D", "", found[1]).lstrip("0")), 9, found[0])
        keys = {"event", "step", "epoch", "loss", "grad_norm", "lr", "targets", "tokens", "sequences", "micro_steps", "step_s",
                "tokens_per_s", "memory_bytes"}
        for i, line in enumerate(self.metrics("run", "step")):
            self.assertEqual(set(line), keys)
            self.assertEqual(line["tokens"], sum(len(d) for d in self.documents["train"][32 * i:32 * i + 32]))
            self.assertEqual(line["sequences"], 32)
            self.assertGreater(line["memory_bytes"], 2**20)
        checkpoint, = self.metrics("run", "checkpoint")
        files = list((self.shared / "run" / "latest").iterdir())
        self.assertEqual(checkpoint["bytes"], sum(file.stat().st_size for file in files))
        self.assertEqual([line["event"] for line in self.metrics("run")][::len(self.metrics("run")) - 1], ["start", "stop"])

    def test_eval_of_weights_folder_and_checkpoint(self):
        export = self.shared / "for eval"
        support.run("export", "--from", self.shared / "run", "--to", export)
        before, after = CURVE["validation_before"], CURVE["validation_after"]
        run = self.shared / "run"
        models = ((self.weights, before, 0), (STORY, before, 0), (export, after, 0), (run, after, 40), (run / "latest", after, 40),
                  (run / "step-00000040" / "manifest.h5", after, 40))
        found = {}
        for model, loss, step in models:
            for ranks in (None, 3):
                done = support.run("eval", f"--model.weights={model}", f"--data.tokens={self.tokens}", "--precision.compute=fp32",
                                   "--device.threads=1", ranks=ranks)
                line = parse(done.stdout.splitlines()[-1])
                self.assertEqual((line["event"], line["step"], line["targets"]), ("validation", step, 10384))
                self.assert_close([line["loss"]], [loss], 3e-6)
                found.setdefault(loss, []).append(line["loss"])
        for losses in found.values():
            self.assert_close(losses, losses[:1] * len(losses), 1e-6)

    def test_eval_of_some_documents(self):
        whole = support.run("eval", f"--model.weights={self.weights}", f"--data.tokens={self.tokens}", "--evaluation.documents=10",
                            "--precision.compute=fp32", "--device.threads=1").stdout
        self.assertEqual(parse(whole.splitlines()[-1])["targets"], sum(len(d) - 1 for d in self.documents["validation"][:10]))


if __name__ == "__main__":
    unittest.main()
