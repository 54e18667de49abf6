"""A test case that trains and evaluates a tiny model: input files by h5py, jobs alone or under mpirun, and what they leave."""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import h5py
import numpy as np

import support

VOCABULARY = 131
ROOT_FLAG = ["--allow-run-as-root"] if os.getuid() == 0 else []
MPIRUN = ["mpirun", *ROOT_FLAG, "--oversubscribe"]


def documents(count, seed=7, shortest=5, vocabulary=VOCABULARY):
    """Documents of random ids whose lengths all differ."""
    random = np.random.default_rng(seed)
    return [random.integers(0, vocabulary, shortest + i).astype("u2") for i in range(count)]


def strict(text):
    """A JSON object by a parser that refuses NaN and Infinity."""
    def refuse(word):
        raise AssertionError(f"{word} is no JSON: {text}")
    return json.loads(text, parse_constant=refuse)


class JobCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.weights = self.dir / "w.h5"
        self.tokens = self.dir / "t.h5"
        self.run_dir = self.dir / "run"
        self.write_weights()
        self.write_tokens()

    def write_weights(self, path=None, change=None, **config):
        """The fixture llama2 (131 x 48, 3 layers, fp32, 64 positions) as a weights file. `change` edits {name: array}; config keys with
        value None are left out."""
        folder = support.FIXTURES / "llama2" / "hf"
        keys = {**json.loads((folder / "config.json").read_text()), **config}
        arrays = {name: array.copy() for name, (_, array) in support.read_folder(folder).items()}
        if change:
            change(arrays)
        with h5py.File(path or self.weights, "w") as file:
            file.attrs.update({"sherd.kind": "weights", "sherd.version": 1})
            file.attrs["config"] = json.dumps({key: value for key, value in keys.items() if value is not None})
            for name, array in arrays.items():
                file[f"model/{name}"] = array

    def write_tokens(self, path=None, train=None, validation=None, vocabulary=VOCABULARY):
        with h5py.File(path or self.tokens, "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "vocab_size": vocabulary, "tokenizer": ""})
            for name, docs in (("train", documents(12) if train is None else train),
                               ("validation", documents(3, 8) if validation is None else validation)):
                file[f"{name}/tokens"] = np.concatenate(docs).astype("u2")
                file[f"{name}/doc_offsets"] = np.cumsum([0, *map(len, docs)]).astype("u8")

    def edit(self, path, change):
        with h5py.File(path, "a") as file:
            change(file)

    def arguments(self, command="train", *more, **keys):
        """A command line; keys as section__key=value."""
        values = {"model.weights": self.weights, "data.tokens": self.tokens, "run.directory": self.run_dir, "run.steps": 4,
                  "batch.sequences": 4, "optimizer.learning_rate": 1e-3, "sharding.strategy": "no_shard", "device.threads": 1}
        values.update({key.replace("__", "."): value for key, value in keys.items()})
        return [str(support.BUILD / "sherd"), command, *(f"--{key}={value}" for key, value in values.items()), *more]

    def start(self, command, **popen):
        return subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                cwd=popen.pop("cwd", support.ROOT), **popen)

    def ended(self, process, expect=0, seconds=120):
        """Waits for it; the exit code must be as expected and no library may have died or printed a stack. Returns (stdout, stderr)."""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            out, err = process.communicate(timeout=20)
            self.fail(f"no end after {seconds} s: {process.args}\n{out}\n{err}")
        told = f"{' '.join(process.args)}\nexit {process.returncode}, expected {expect}\n{out}\n{err}"
        self.assertEqual(process.returncode, expect, told)
        for word in (*support.FORBIDDEN, "infinite loop"):
            self.assertNotIn(word, out + err, told)
        return out, err

    def job(self, command="train", *more, ranks=None, expect=0, env=None, **keys):
        line = self.arguments(command, *more, **keys)
        if ranks is not None:
            line = [*MPIRUN, "-np", ranks, *line]
        return self.ended(self.start(line, env=None if env is None else {**os.environ, **env}), expect)

    def refused(self, *parts, command="train", expect=4, **keys):
        """The job must end so, with one error line that holds all parts. Returns that line."""
        _, err = self.job(command, expect=expect, **keys)
        errors = [line for line in err.splitlines() if line.startswith("sherd: error:")]
        self.assertEqual(len(errors), 1, err)
        told = err[err.index("sherd: error:"):]
        for part in parts:
            self.assertIn(str(part), told)
        return errors[0]

    def metrics(self, event=None):
        """Every line of metrics.jsonl, of one kind of event; all must be whole and strict JSON."""
        text = (self.run_dir / "metrics.jsonl").read_text()
        self.assertTrue(text.endswith("\n"), text[-200:])
        lines = [strict(line) for line in text.splitlines()]
        return [line for line in lines if event in (None, line["event"])]

    def sets(self):
        """Names of checkpoints, and that nothing half-made lies beside them."""
        names = sorted(os.listdir(self.run_dir))
        self.assertEqual([name for name in names if ".tmp-" in name], [])
        return [name for name in names if name.startswith("step-")]
