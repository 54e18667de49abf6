"""How runs end and go on: signals, the time limit, finished runs, moved directories, numbers that overflow."""
import math
import os
import re
import shutil
import signal
import time
import unittest

import numpy as np

import support
from training_case import STORY, TrainingCase

FOREVER = {"run__steps": 100000, "batch__sequences": 4}


class Signals(TrainingCase):
    def ended(self, process, expect):
        stdout, stderr = process.communicate(timeout=60)
        self.assertEqual(process.returncode, expect, stdout + stderr)
        for word in support.FORBIDDEN:
            self.assertNotIn(word, stdout + stderr)
        return stdout + stderr

    def assert_stopped_well(self, name, reason, ranks=None):
        """A checkpoint of the last step is there, and the run goes on from it."""
        steps = [line["step"] for line in self.metrics(name, "step")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertEqual((self.dir / name / "latest").readlink().name, f"step-{steps[-1]:08}")
        stop = self.metrics(name)[-1]
        self.assertEqual((stop["event"], stop["step"], stop["exit"]), ("stop", steps[-1], 75))
        self.assertIn(reason, stop["reason"])
        self.train(name, ranks, **FOREVER, run__stop_step=steps[-1] + 2)
        self.assertEqual([line["step"] for line in self.metrics(name, "step")], list(range(1, steps[-1] + 3)))

    def test_one_process(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number.name):
                process = self.start(number.name, **FOREVER)
                self.wait_for_steps(number.name, 3, process)
                process.send_signal(number)
                self.ended(process, 75)
                self.assert_stopped_well(number.name, f"signal {number.value}")

    def test_mpirun_passes_usr1_on(self):
        process = self.start("run", 2, **FOREVER)
        self.wait_for_steps("run", 3, process)
        process.send_signal(signal.SIGUSR1)
        self.ended(process, 75)
        self.assert_stopped_well("run", f"signal {signal.SIGUSR1.value}", 2)

    def test_a_signal_to_one_rank_stops_all_in_the_same_step(self):
        process = self.start("run", 3, **FOREVER)
        self.wait_for_steps("run", 3, process)
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
            ranks = [int(pid) for pid in file.read().split()]
        self.assertEqual(len(ranks), 3)
        os.kill(ranks[-1], signal.SIGTERM)
        self.ended(process, 75)
        self.assert_stopped_well("run", f"signal {signal.SIGTERM.value}", 3)

    def test_the_job_s_end_is_seen_coming(self):
        slurm = {"SLURM_JOB_ID": "7", "PATH": "/nowhere"}
        end = time.time() + 18
        process = self.start("run", env={**slurm, "SLURM_JOB_END_TIME": str(int(end))}, **FOREVER)
        self.ended(process, 75)
        self.assertLess(time.time(), end)
        self.assert_stopped_well("run", "time")

    def test_a_bad_end_time_is_one_warning(self):
        for i, (value, word) in enumerate((("123", "past"), ("soon", "soon"), ("1e9", "1e9"), ("-5", "past"))):
            with self.subTest(value):
                process = self.start(str(i), env={"SLURM_JOB_ID": "7", "SLURM_JOB_END_TIME": value}, run__steps=2, batch__sequences=4)
                said = self.ended(process, 0)
                warnings = [line for line in said.splitlines() if "SLURM_JOB_END_TIME" in line]
                self.assertEqual(len(warnings), 1, said)
                self.assertIn(word, warnings[0])
        process = self.start("unset", env={"SLURM_JOB_ID": "7", "PATH": "/nowhere"}, run__steps=2, batch__sequences=4)
        self.assertNotIn("warning", self.ended(process, 0))


class Finished(TrainingCase):
    """A run that is at its end touches nothing; a longer one goes on."""

    def files(self, name):
        """Everything in the directory but the lock, with time of change."""
        return {str(p): p.lstat().st_mtime_ns for p in (self.dir / name).rglob("*") if p.name != ".lock"}

    def test_again_longer_and_shorter(self):
        keys = {"batch__sequences": 4, "optimizer__learning_rate": 1e-4}
        for name, every in (("even", 10), ("odd", 8)):
            self.train(name, run__steps=20, **keys, checkpoint__every=every)
            before = self.files(name)
            for _ in range(2):
                start = time.monotonic()
                self.assertIn("nothing left", self.train(name, run__steps=20, **keys, checkpoint__every=every).stdout)
                self.assertLess(time.monotonic() - start, 10)
                self.assertEqual(self.files(name), before)
        self.train("odd", run__steps=15, **keys)
        self.assertEqual(self.files("odd"), before)
        done = self.train("odd", run__steps=25, **keys)
        self.assertIn("schedule", done.stderr)
        steps = self.metrics("odd", "step")
        self.assertEqual([line["step"] for line in steps], list(range(1, 26)))
        # cosine to a tenth: the first 20 steps by the schedule of 20, the others by that of 25
        lr = [line["lr"] for line in steps]
        self.assertAlmostEqual(lr[10], 1e-4 * 0.55, delta=1e-12)
        self.assertAlmostEqual(lr[20], 1e-4 * (0.1 + 0.9 * (1 + math.cos(math.pi * 20 / 25)) / 2), delta=1e-12)


class Moved(TrainingCase):
    """The newest whole set is found whatever became of the link to it."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        case = cls()
        case.dir = cls.shared
        case.train("run", **case.keys(3))

    @staticmethod
    def keys(steps):
        return {"run__steps": 6, "run__stop_step": steps, "batch__sequences": 4, "checkpoint__every": 1, "checkpoint__keep": 3}

    def setUp(self):
        super().setUp()
        shutil.copytree(self.shared / "run", self.dir / "run", symlinks=True)

    def resumed(self, name="run", after=3, **keys):
        """Two more steps; returns what was said."""
        done = self.train(name, **{**self.keys(5), **keys})
        self.assertIn(f"after step {after}\n", done.stdout)
        self.assertEqual([line["step"] for line in self.metrics(name, "step")], [1, 2, 3, 4, 5])
        latest = self.dir / name / "latest"
        self.assertEqual(os.readlink(latest), "step-00000005")
        self.assertFalse(any(".tmp" in path.name for path in (self.dir / name).iterdir()))
        return done.stderr

    def test_three_sets_and_a_relative_link(self):
        self.assertEqual(sorted(p.name for p in (self.dir / "run").glob("step-*")), [f"step-{i:08}" for i in (1, 2, 3)])
        self.assertEqual(os.readlink(self.dir / "run" / "latest"), "step-00000003")

    def test_moved(self):
        (self.dir / "run").rename(self.dir / "elsewhere")
        self.assertNotIn("latest", self.resumed("elsewhere"))

    def test_copied_with_links_followed(self):
        shutil.copytree(self.dir / "run", self.dir / "copy")
        self.resumed("copy")

    def test_only_the_copied_latest_is_there(self):
        shutil.copytree(self.dir / "run", self.dir / "copy", ignore=shutil.ignore_patterns("step-*"))
        self.resumed("copy")

    def test_link_deleted(self):
        (self.dir / "run" / "latest").unlink()
        self.assertIn("latest", self.resumed())

    def test_link_dangles(self):
        shutil.rmtree(self.dir / "run" / "step-00000003")
        self.assertIn("latest", self.resumed(after=2))

    def test_a_file_where_the_link_was(self):
        (self.dir / "run" / "latest").unlink()
        (self.dir / "run" / "latest").write_text("step-00000003")
        self.assertIn("latest", self.resumed())
        self.assertEqual((self.dir / "run" / "latest.set-aside-1").read_text(), "step-00000003")

    def test_other_spellings_of_the_directory(self):
        self.resumed(run__directory=f"{self.dir}/run/")

    def test_a_named_set(self):
        for path in ("latest", "latest/", "step-00000003", "step-00000003/manifest.h5", ""):
            with self.subTest(path):
                shutil.rmtree(self.dir / "run")
                shutil.copytree(self.shared / "run", self.dir / "run", symlinks=True)
                self.resumed(checkpoint__resume=f"{self.dir}/run/{path}")
        for path in ("nowhere", "metrics.jsonl"):
            self.assertIn(path, self.train("run", expect=4, **{**self.keys(6), "checkpoint__resume": f"{self.dir}/run/{path}"}).stderr)

    def test_never(self):
        said = self.train("run", expect=2, **self.keys(5), checkpoint__resume="never").stderr
        self.assertIn("step-00000003", said)


class Overflow(TrainingCase):
    def test_a_loss_that_blows_up(self):
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                name = f"run{ranks}"
                done = self.train(name, ranks, expect=6, run__steps=20, batch__sequences=4, optimizer__learning_rate=1e30,
                                  optimizer__schedule="constant", checkpoint__every=1)
                last = self.metrics(name)[-1]  # every line was parsed by a parser that refuses NaN
                self.assertEqual((last["event"], last["exit"]), ("stop", 6))
                error = [line for line in done.stderr.splitlines() if line.startswith("sherd: error:")]
                self.assertEqual(len(error), 1, done.stderr)
                self.assertRegex(error[0], rf"step {last['step']}: .*not finite.*units")
                good = last["step"] - 1
                self.assertEqual((self.dir / name / "latest").readlink().name, f"step-{good:08}")
                self.assertEqual(len(self.parameters(name)), 47)
                self.assertTrue(re.search(rf"newest checkpoint is step-{good:08}", error[0]), error[0])

    def scaled_story(self, norm, embedding=1.0):
        """The story model with its last norm and its embedding multiplied: the logits grow by both factors."""
        folder = shutil.copytree(STORY, self.dir / "hf", dirs_exist_ok=True, copy_function=shutil.copyfile)
        tensors = support.read_folder(STORY)
        for name, factor in (("model.norm.weight", norm), ("model.embed_tokens.weight", embedding)):
            tensors[name] = ("F32", tensors[name][1] * np.float32(factor))
        support.write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def test_a_perplexity_beyond_double(self):
        self.train("run", 2, model__weights=self.scaled_story(1e4), run__steps=1, batch__sequences=4)
        for line in self.metrics("run", "validation"):
            self.assertGreater(line["loss"], 709)
            self.assertIsNone(line["perplexity"])

    def test_a_loss_that_is_no_number_from_the_start(self):
        for ranks in (1, 3):
            name = f"run{ranks}"
            said = self.train(name, ranks, expect=6, model__weights=self.scaled_story(1e30, 1e15), run__steps=1, batch__sequences=4).stderr
            self.assertRegex(said, "step 1: .*loss.*not finite")
            self.assertIn("no checkpoint was written yet", said)
            self.assertEqual([line["loss"] for line in self.metrics(name) if "loss" in line], [None, None])
            self.assertFalse((self.dir / name / "latest").exists())


if __name__ == "__main__":
    unittest.main()
