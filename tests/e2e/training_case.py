"""A test case with the story model and the verses of Genesis as files of the program, and the steps that training tests share."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import h5py
import numpy as np

import support

FULL = os.environ.get("SHERD_FULL") == "1" or os.environ.get("SHERD_TESTS") == "full"
STORY = support.ROOT / "inputs" / "stories260k-hf"
GENESIS = support.FIXTURES / "stories_genesis"
CURVE = json.loads((GENESIS / "curve.json").read_text())
STATES = ("parameters", "exp_avg", "exp_avg_sq")


def refuse_constant(text):
    raise ValueError(f"{text} is no JSON")


def parse(line):
    """A line of metrics, by a parser that refuses NaN and Infinity."""
    return json.loads(line, parse_constant=refuse_constant)


def write_tokens(path, train, validation=None, masks=None, vocabulary=512):
    """A token file of documents (lists of ids); masks: by document of `train`."""
    with h5py.File(path, "w") as file:
        file.attrs["sherd.kind"], file.attrs["sherd.version"], file.attrs["vocab_size"] = "tokens", 1, vocabulary
        for name, documents in (("train", train), ("validation", validation)):
            if documents is None:
                continue
            flat = np.concatenate([np.asarray(d, np.uint16) for d in documents]) if documents else np.zeros(0, np.uint16)
            file[f"{name}/tokens"] = flat
            file[f"{name}/doc_offsets"] = np.cumsum([0] + [len(d) for d in documents]).astype(np.uint64)
        if masks is not None:
            file["train/loss_mask"] = np.concatenate([np.asarray(m, np.uint8) for m in masks])
    return path


class TrainingCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="sherd-training-")
        cls.addClassCleanup(folder.cleanup)
        cls.shared = pathlib.Path(folder.name)
        cls.weights, cls.tokens = cls.shared / "story.h5", cls.shared / "genesis.h5"
        support.run("import", "--from", STORY, "--to", cls.weights)
        stored = {name: array for name, (_, array) in support.read_safetensors(GENESIS / "tokens.safetensors").items()}
        cls.documents = {group: np.split(stored[f"{group}/tokens"], stored[f"{group}/doc_offsets"][1:-1].astype(np.int64))
                         for group in ("train", "validation")}
        write_tokens(cls.tokens, cls.documents["train"], cls.documents["validation"])

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sherd-training-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def arguments(self, name, given):
        """Command line of a run in directory `name`; a key is written with two underscores for its dot."""
        keys = {"model.weights": self.weights, "data.tokens": self.tokens, "data.shuffle": "false", "precision.compute": "fp32",
                "sharding.strategy": "no_shard", "device.threads": 1, "run.directory": self.dir / name}
        keys.update({key.replace("__", "."): value for key, value in given.items()})
        return [f"--{key}={value}" for key, value in keys.items()]

    def curve_keys(self, **more):
        """The settings of curve.json."""
        s = CURVE["settings"]
        keys = {"run__steps": s["steps"], "batch__sequences": s["sequences"], "optimizer__learning_rate": s["learning_rate"],
                "optimizer__warmup_steps": s["warmup_steps"], "optimizer__min_lr_ratio": s["min_lr_ratio"],
                "optimizer__schedule": s["schedule"], "optimizer__beta1": s["betas"][0], "optimizer__beta2": s["betas"][1],
                "optimizer__epsilon": s["epsilon"], "optimizer__weight_decay": s["weight_decay"], "optimizer__clip_norm": s["clip_norm"]}
        return {**keys, **more}

    def train(self, name, ranks=None, expect=0, more=(), **keys):
        """Trains in directory `name`; returns the process with its texts."""
        return support.run("train", *self.arguments(name, keys), *more, ranks=ranks, expect=expect)

    def start(self, name, ranks=None, env=None, **keys):
        """Starts training without waiting; the process is ended with the test at the latest."""
        command = [str(support.BUILD / "sherd"), "train", *self.arguments(name, keys)]
        if ranks is not None:
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            command = ["mpirun", *root, "--oversubscribe", "-np", str(ranks), *command]
        process = subprocess.Popen(command, cwd=support.ROOT, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def wait_for_steps(self, name, count, process):
        """Until the run has logged that many steps."""
        for _ in range(1200):
            path = self.dir / name / "metrics.jsonl"
            if path.exists() and path.read_text().count('"event":"step"') >= count:
                return
            self.assertIsNone(process.poll(), process.poll() is not None and process.communicate())
            time.sleep(0.05)
        self.fail(f"no {count} steps after a minute")

    def metrics(self, name, event=None):
        """All lines of a run's metrics, parsed strictly, or those of one event."""
        lines = (self.dir / name / "metrics.jsonl").read_text().splitlines()
        return [line for line in map(parse, lines) if event in (None, line["event"])]

    def losses(self, name):
        return [line["loss"] for line in self.metrics(name, "step")]

    def state(self, name, step=None):
        """{group/parameter: whole tensor} of a checkpoint, the newest without `step`."""
        folder = self.dir / name / ("latest" if step is None else f"step-{step:08}")
        with h5py.File(folder / "manifest.h5") as file:
            return {f"{group}/{p}": file[group][p][:] for group in STATES for p in file[group]}

    def parameters(self, name, step=None):
        return {key.removeprefix("parameters/"): array for key, array in self.state(name, step).items() if key.startswith("parameters/")}

    def assert_same_bits(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for key, array in expected.items():
            self.assertEqual(found[key].shape, array.shape, key)
            self.assertEqual(found[key].tobytes(), array.tobytes(), key)

    def assert_close(self, found, expected, relative):
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            self.assertLessEqual(abs(a - b), relative * abs(b), f"value {i + 1}: {a}, expected {b}")

    def assert_on_curve(self, name, first=1, last=None):
        """Steps `first` to `last` as float64 PyTorch took them: loss, gradient norm, learning rate, targets."""
        expected = CURVE["steps"][first - 1:last]
        steps = [line for line in self.metrics(name, "step") if first <= line["step"] <= expected[-1]["step"]]
        self.assertEqual([line["step"] for line in steps], [line["step"] for line in expected])
        self.assertEqual([line["targets"] for line in steps], [line["targets"] for line in expected])
        for key, relative in (("loss", 3e-6), ("grad_norm", 2e-5), ("lr", 1e-12)):
            self.assert_close([line[key] for line in steps], [line[key] for line in expected], relative)

    def assert_validations(self, name, relative=3e-6):
        lines = self.metrics(name, "validation")
        self.assertEqual([line["step"] for line in lines], [0, CURVE["settings"]["steps"]])
        self.assert_close([line["loss"] for line in lines], [CURVE["validation_before"], CURVE["validation_after"]], relative)
        self.assert_close([line["perplexity"] for line in lines], np.exp([line["loss"] for line in lines]), 1e-12)
