"""A test case for the models of tests/fixtures with what PyTorch computed for them: token files, training as PyTorch trained."""
import json

import h5py
import numpy as np

import support
from folder_case import FolderCase

ALL = sorted(json.loads((support.FIXTURES / "cases.json").read_text()))


def reference(name):
    """(numbers of reference.json, {tensor: array} of reference.safetensors)"""
    folder = support.FIXTURES / name
    arrays = {key: array for key, (_, array) in support.read_safetensors(folder / "reference.safetensors").items()}
    return json.loads((folder / "reference.json").read_text()), arrays


def as_float(dtype, array):
    """Stored values as float32, exactly."""
    if dtype == "BF16":
        return (np.ascontiguousarray(array).astype("<u4") << 16).view("<f4")
    return array.astype("<f4")


class FixtureCase(FolderCase):
    def write_tokens(self, name, groups=("train", "validation")):
        """The fixture's documents as a token file."""
        _, arrays = reference(name)
        path = self.dir / f"{name}-tokens.h5"
        with h5py.File(path, "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "tokenizer": ""})
            for group in groups:
                file[f"{group}/tokens"] = arrays["tokens"].astype("u2")
                file[f"{group}/doc_offsets"] = arrays["doc_offsets"].astype("u8")
                file[f"{group}/loss_mask"] = arrays["loss_mask"].astype("u1")
        return path

    def train(self, name, weights, run="run", ranks=None, steps=3, strategy="no_shard", **keys):
        """Trains as make.py did; returns the lines of the steps."""
        numbers, arrays = reference(name)
        values = {"model.weights": weights, "data.tokens": self.write_tokens(name, ("train",)), "data.shuffle": "false", "run.steps": steps,
                  "run.directory": self.dir / run, "batch.sequences": len(arrays["doc_offsets"]) - 1, "optimizer.schedule": "constant",
                  "optimizer.learning_rate": numbers["learning_rate"], "optimizer.beta1": numbers["betas"][0],
                  "optimizer.beta2": numbers["betas"][1], "optimizer.epsilon": numbers["eps"],
                  "optimizer.weight_decay": numbers["weight_decay"], "optimizer.clip_norm": numbers["clip_norm"],
                  "precision.compute": "fp32", "sharding.strategy": strategy, "device.threads": 1}
        values.update({key.replace("__", "."): value for key, value in keys.items()})
        self.said = support.run("train", *(f"--{key}={value}" for key, value in values.items()), ranks=ranks)
        lines = [json.loads(line) for line in (self.dir / run / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == "step"]

    def evaluated(self, name, weights, ranks=None, compute="fp32"):
        """The loss that eval finds over the fixture's documents."""
        done = support.run("eval", f"--model.weights={weights}", f"--data.tokens={self.write_tokens(name)}", "--sharding.strategy=full_shard",
                           f"--precision.compute={compute}", "--device.threads=1", ranks=ranks)
        return json.loads(done.stdout.splitlines()[-1])["loss"]
