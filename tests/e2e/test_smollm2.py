"""A real model of 135 million parameters, stored in bfloat16: six steps on verses as PyTorch took them. Minutes, so in `make test-full` only."""
import json
import os
import subprocess
import unittest

import h5py
import numpy as np

import support
import torch_python
from folder_case import FolderCase

FULL = os.environ.get("SHERD_TESTS") == "full"
PYTHON, REASON = torch_python.find() if FULL else (None, "takes minutes; make test-full runs it")
# PyTorch 2 in float32 with FSDP2 on two ranks and with one process, micro-batches of 8 padded documents: both gave these
# and 4.46 GiB of resident memory a rank
PEER_MEMORY = 4.46 * 2**30
LOSSES = [3.08534, 2.93752, 3.06608, 3.70576, 2.85922, 2.90335]


@unittest.skipIf(PYTHON is None, REASON)
class SmolLM2(FolderCase):
    def test_six_steps_on_two_ranks(self):
        model = support.BUILD / "smollm2" / "hf"
        if not (model / "tokenizer_config.json").exists():
            done = subprocess.run([PYTHON, support.ROOT / "inputs" / "make_smollm2.py", model], capture_output=True, text=True)
            if done.returncode != 0:
                self.skipTest("the model could not be made: " + (done.stderr.strip().splitlines() or ["no message"])[-1])
        count = 32 * len(LOSSES)
        torch_python.call(PYTHON, "tokens", model, support.ROOT / "inputs" / "genesis.jsonl", count, self.dir / "tokens.npz")
        stored = np.load(self.dir / "tokens.npz")
        with h5py.File(self.dir / "tokens.h5", "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "vocab_size": 49152, "tokenizer": "SmolLM2"})
            file["train/tokens"] = stored["tokens"].astype("u2")
            file["train/doc_offsets"] = stored["doc_offsets"].astype("u8")
        keys = {"model.weights": model, "data.tokens": self.dir / "tokens.h5", "data.shuffle": "false", "run.directory": self.dir / "run",
                "run.steps": len(LOSSES), "batch.sequences": 32, "batch.micro_tokens": 320, "optimizer.learning_rate": 1e-4, "optimizer.schedule": "constant",
                "optimizer.beta1": 0.9, "optimizer.beta2": 0.95, "optimizer.epsilon": 1e-8, "optimizer.weight_decay": 0.1,
                "optimizer.clip_norm": 1.0, "sharding.strategy": "full_shard", "precision.compute": "fp32", "device.threads": 1}
        support.run("train", *(f"--{key}={value}" for key, value in keys.items()), ranks=2, seconds=3600)
        steps = [line for line in map(json.loads, (self.dir / "run" / "metrics.jsonl").read_text().splitlines()) if line["event"] == "step"]
        for line, expected in zip(steps, LOSSES, strict=True):
            self.assertLess(abs(line["loss"] - expected), 1e-4, f"step {line['step']}")
            self.assertLess(line["memory_bytes"], PEER_MEMORY / 2)


if __name__ == "__main__":
    unittest.main()
