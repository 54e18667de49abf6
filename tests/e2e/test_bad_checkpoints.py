"""Checkpoints that are damaged, missing or of another run, and what `inspect` says of them."""
import os
import re
import shutil
import unittest

import h5py
import numpy as np

import support
from job_case import JobCase

NORM = "model.norm.weight"


class CheckpointCase(JobCase):
    def setUp(self):
        super().setUp()
        self.job(ranks=2, checkpoint__every=2)
        self.assertEqual(self.sets(), ["step-00000002", "step-00000004"])
        self.newest, self.older = self.run_dir / "step-00000004", self.run_dir / "step-00000002"

    def damage(self, how, folder):
        manifest, rank = folder / "manifest.h5", folder / "rank-00001.h5"
        if how == "manifest truncated":
            os.truncate(manifest, manifest.stat().st_size // 2)
        elif how == "manifest empty":
            os.truncate(manifest, 0)
        elif how == "manifest missing":
            manifest.unlink()
        elif how == "manifest of another version":
            self.edit(manifest, lambda f: f.attrs.update({"sherd.version": 9}))
        elif how == "state is no JSON":
            self.edit(manifest, lambda f: f["state"].write_direct(np.full(f["state"].shape, ord("x"), "u1")))
        elif how == "rank file truncated":
            os.truncate(rank, rank.stat().st_size - 1)
        elif how == "rank file missing":
            rank.unlink()
        return "rank-00001.h5" if "rank" in how else "manifest.h5"

    DAMAGES = ("manifest truncated", "manifest empty", "manifest missing", "manifest of another version", "state is no JSON",
               "rank file truncated", "rank file missing")


class Damaged(CheckpointCase):
    def test_the_set_before_is_used_and_the_damage_named(self):
        for how in self.DAMAGES:
            with self.subTest(how):
                whole = shutil.copytree(self.run_dir, self.dir / "copy", symlinks=True)
                culprit = self.damage(how, whole / "step-00000004")
                out, err = self.job("train", "--validate", run__directory=whole, run__steps=6)
                warning = [line for line in err.splitlines() if "warning" in line]
                self.assertEqual(len(warning), 1, err)
                for part in ("step-00000004", "damaged", culprit):
                    self.assertIn(part, warning[0])
                self.assertIn("resumes after step 2", out)
                self.damage(how, whole / "step-00000002")
                self.refused("none is whole", "step-00000004", culprit, run__directory=whole, run__steps=6)
                self.refused("step-00000004", culprit, run__directory=self.dir / "new", checkpoint__resume=whole / "step-00000004")
                self.assertEqual(sorted(os.listdir(whole))[-2:], ["step-00000002", "step-00000004"])
                shutil.rmtree(whole)

    def test_training_goes_on_from_the_set_before(self):
        self.damage("rank file truncated", self.newest)
        _, err = self.job(ranks=3, run__steps=5)
        self.assertIn("damaged", err)
        self.assertEqual([line["step"] for line in self.metrics("step")], [1, 2, 3, 4, 5])
        self.assertEqual(os.readlink(self.run_dir / "latest"), "step-00000005")

    def test_a_rank_file_of_the_right_size_that_is_none(self):
        path = self.newest / "rank-00000.h5"
        path.write_bytes(b"\0" * path.stat().st_size)
        self.refused("rank-00000.h5", "HDF5", run__steps=6, ranks=2)
        self.assertIn("rank-00000.h5", support.run("inspect", self.newest, "--verify", expect=4).stderr)

    def test_eval_and_export_name_the_damage(self):
        self.damage("rank file missing", self.newest)
        self.refused("rank-00001.h5", command="eval", model__weights=self.newest)
        self.assertIn("rank-00001.h5", support.run("export", "--from", self.newest, "--to", self.dir / "hf", expect=4).stderr)
        self.assertFalse((self.dir / "hf").exists())
        self.job("eval", model__weights=self.run_dir)  # a run's directory: its newest whole set


class Elsewhere(CheckpointCase):
    def test_resume_settings(self):
        self.refused("checkpoint.resume = never", "step-00000004", "run.directory", expect=2, checkpoint__resume="never")
        (self.dir / "empty").mkdir()
        for path in ("empty", "absent"):
            self.refused(self.dir / path, "checkpoint", expect=4, run__directory=self.dir / "new", checkpoint__resume=self.dir / path)
        half = self.dir / "half" / "step-00000009"
        half.mkdir(parents=True)
        (half / "rank-00000.h5").write_bytes(b"")
        self.refused("step-00000009", "none is whole", run__directory=half.parent)
        self.assertEqual(os.listdir(half), ["rank-00000.h5"])
        for path in (self.run_dir, self.newest, self.run_dir / "latest", self.newest / "manifest.h5", f"{self.newest}/"):
            out, _ = self.job("train", "--validate", run__directory=self.dir / "new", checkpoint__resume=path, run__steps=6)
            self.assertIn("resumes after step 4", out)

    def test_a_checkpoint_of_another_model(self):
        self.write_weights(change=lambda a: a.update({name: a[name][:96] if "down_proj" not in name else a[name][:, :96]
                                                      for name in a if ".mlp." in name}), intermediate_size=96)
        self.refused("another model", "mlp", "[104, 48]", "[96, 48]", run__steps=6)
        self.refused("another model", "mlp", run__steps=6, ranks=3, run__directory=self.dir / "new", checkpoint__resume=self.newest)

        def drop(arrays):
            for name in [name for name in arrays if ".layers.2." in name]:
                del arrays[name]
        self.write_weights(change=drop, num_hidden_layers=2)
        line = self.refused("another model", "parameters", run__steps=6)
        self.assertRegex(line, r"\b30 parameters.*\b21\b")
        self.write_weights(change=lambda a: a.update({NORM: a[NORM] * np.float32(1.5)}))
        self.refused("model.weights", "content", "--allow-changes", run__steps=6, expect=2)

    def test_other_settings_are_listed(self):
        told = self.refused("optimizer.learning_rate", "0.001", "0.002", "--allow-changes", expect=2, run__steps=6,
                            optimizer__learning_rate=2e-3)
        self.assertNotIn("batch", told)
        self.assertEqual(len(self.metrics("step")), 4)
        _, err = self.job("train", "--allow-changes", run__steps=5, optimizer__learning_rate=2e-3)
        self.assertIn("optimizer.learning_rate", err)
        self.assertEqual(len(self.metrics("step")), 5)


class Inspect(CheckpointCase):
    def test_what_a_set_holds(self):
        with h5py.File(self.newest / "manifest.h5") as file:
            parameters = file["parameters"]
            count = sum(d.size for d in parameters.values())
            names = list(parameters)
        for path in (self.newest, self.run_dir, self.run_dir / "latest", self.newest / "manifest.h5"):
            text = support.run("inspect", path).stdout
            for part in ("checkpoint", "step        4", "position 16", "epoch 1", "world size  2", "LlamaForCausalLM", f"{count} parameters",
                         "fp32", "rank-00000.h5", f"{(self.newest / 'rank-00001.h5').stat().st_size} bytes", "whole"):
                self.assertIn(part, text)
            for name in names:
                self.assertIn(name, text)
            self.assertNotIn("verified", text)
        pieces = [int(n) for n in re.findall(r"(\d+) pieces with", text)]
        held = [int(n) for n in re.findall(r"pieces with (\d+) parameters", text)]
        with h5py.File(self.newest / "rank-00000.h5") as file:
            self.assertEqual(pieces[0], len(file["parameters"]))
            self.assertEqual(held[0], sum(d.size for d in file["parameters"].values()))
        self.assertEqual(sum(held), count)
        text = support.run("inspect", self.newest, "--verify").stdout
        self.assertIn(f"{3 * count} elements", text)

    def test_damage_is_exit_4_and_named(self):
        for how in self.DAMAGES:
            with self.subTest(how):
                copy = shutil.copytree(self.newest, self.dir / "step-00000004")
                culprit = self.damage(how, copy)
                err = support.run("inspect", copy, expect=4).stderr
                self.assertIn(culprit, err)
                self.assertIn("damaged", err)
                shutil.rmtree(copy)
        for path in ("absent", "run/step-00000099"):
            self.assertIn(path, support.run("inspect", self.dir / path, expect=4).stderr)

    def spoil(self, state, value, piece=None):
        """Changes one element of a state in the rank file that holds it; returns that file's name."""
        for path in sorted(self.newest.glob("rank-*.h5")):
            with h5py.File(path, "a") as file:
                if NORM in file[state]:
                    if piece is not None:
                        del file[state][NORM]
                        file[state][NORM] = piece
                    else:
                        file[state][NORM][3] = value
                    return path.name
        self.fail("no rank file holds the norm")

    def test_verify_reads_every_state(self):
        for state, bad, good in (("parameters", np.nan, 1), ("exp_avg", np.inf, 0), ("exp_avg_sq", -1, 0)):
            name = self.spoil(state, bad)
            support.run("inspect", self.newest)
            err = support.run("inspect", self.newest, "--verify", expect=4).stderr
            for part in (name, f"{state}/{NORM}", "element 3"):
                self.assertIn(part, err)
            self.spoil(state, good)
        support.run("inspect", self.newest, "--verify")


if __name__ == "__main__":
    unittest.main()
