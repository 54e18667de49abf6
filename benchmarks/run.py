#!/usr/bin/env python3
"""Tokens a second and peak memory of training, and beside them PyTorch's on the same work where it is there.

    make bench
    make bench TORCH_PYTHON=~/venv/bin/python BENCH='--rounds 3 --compile'

A random model and random documents of 256 tokens; 4,096 tokens a step in micro-batches of 1,024; one rank with all cores, then two ranks
with half of them each; fp32 and bf16. sherd and PyTorch take turns, round by round, so that a busy machine hits both. Figures are the
median over all steps but each run's first; memory is the highest resident size of a rank.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
PLACE = BUILD / "bench"
VOCABULARY = {"tiny": 4096, "small": 8192, "smollm2": 49152}
LENGTH, TOKENS, MICRO = 256, 4096, 1024
TARGET_SPEED = {"fp32": 1.0, "bf16": 0.9}  # times PyTorch's best
TARGET_MEMORY = 0.5


@dataclass
class Measured:
    rates: list = field(default_factory=list)  # tokens/s of single steps
    memory: int = 0

    def add(self, rates, memory):
        self.rates += rates
        self.memory = max(self.memory, memory)

    @property
    def rate(self):
        return statistics.median(self.rates)

    def __str__(self):
        return f"{self.rate:8.0f} tokens/s {self.memory / 2**30:6.2f} GiB" if self.rates else f"{'-':>8} tokens/s {'-':>6} GiB"


def check_run(command, ranks):
    env = dict(os.environ, OMP_NUM_THREADS=str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    done = subprocess.run(command, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def make_inputs(model, steps):
    PLACE.mkdir(parents=True, exist_ok=True)
    weights, tokens = PLACE / f"{model}.h5", PLACE / f"{model}-tokens.h5"
    documents = (steps + 1) * TOKENS // LENGTH
    for path, command in ((weights, ["make_random_model", model, weights]),
                          (tokens, ["make_random_tokens", tokens, VOCABULARY[model], documents, LENGTH, 1])):
        path.unlink(missing_ok=True)
        check_run([str(BUILD / "tools" / command[0]), *map(str, command[1:])], 1)
    return weights, tokens


def run_sherd(arguments, inputs, ranks, compute):
    """One run; (tokens/s of each step but the first, bytes)."""
    directory = PLACE / "run"
    shutil.rmtree(directory, ignore_errors=True)
    weights, tokens = inputs
    command = [str(BUILD / "sherd"), "train", f"--model.weights={weights}", f"--data.tokens={tokens}", f"--batch.tokens={TOKENS}",
               f"--batch.micro_tokens={MICRO}", f"--run.steps={arguments.steps}", f"--run.directory={directory}",
               f"--precision.compute={compute}", "--sharding.strategy=no_shard", "--checkpoint.resume=never"]
    if ranks > 1:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", str(ranks), *command]
    check_run(command, ranks)
    steps = [line for line in map(json.loads, (directory / "metrics.jsonl").open()) if line["event"] == "step"]
    shutil.rmtree(directory)
    return [line["tokens_per_s"] for line in steps[1:]], max(line["memory_bytes"] for line in steps)


def run_torch(arguments, ranks, compute, compiled):
    python = [os.environ["TORCH_PYTHON"]]
    launch = python if ranks == 1 else [*python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*launch, str(ROOT / "benchmarks/torch_peer.py"), "--model", arguments.model, "--compute", compute, "--length", str(LENGTH),
               "--tokens", str(TOKENS), "--micro", str(MICRO), "--steps", str(arguments.steps), *(["--compile"] if compiled else [])]
    result = json.loads(check_run(command, ranks).strip().splitlines()[-1])
    return [TOKENS / seconds for seconds in result["seconds"][1:]], result["memory_bytes"]


def compare(arguments, inputs, ranks, compute):
    """Rounds of one case, interleaved; prints its lines."""
    sherd, peers = Measured(), {}
    if "TORCH_PYTHON" in os.environ:
        peers = {name: Measured() for name in (["PyTorch"] + (["PyTorch compiled"] if arguments.compile else []))}
    for _ in range(arguments.rounds):
        sherd.add(*run_sherd(arguments, inputs, ranks, compute))
        for name, peer in peers.items():
            peer.add(*run_torch(arguments, ranks, compute, name.endswith("compiled")))
    case = f"{arguments.model} {compute} {ranks} rank(s)"
    print(f"{case:<24} sherd            {sherd}", flush=True)
    for name, peer in peers.items():
        print(f"{'':<24} {name:<16} {peer}")
    if peers:
        speed = sherd.rate / max(peer.rate for peer in peers.values())
        memory = sherd.memory / min(peer.memory for peer in peers.values())
        print(f"{'':<24} ratio            {speed:8.2f} x (target {TARGET_SPEED[compute]:.1f})   memory {memory:.2f} x (target {TARGET_MEMORY})",
              flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=VOCABULARY, default="small")
    parser.add_argument("--steps", type=int, default=6, help="of each run; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compute", nargs="+", choices=TARGET_SPEED, default=list(TARGET_SPEED))
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    arguments = parser.parse_args()
    if arguments.steps < 2 or arguments.rounds < 1:
        parser.error("at least 2 steps and 1 round")
    inputs = make_inputs(arguments.model, arguments.steps)
    for ranks in arguments.ranks:
        for compute in arguments.compute:
            compare(arguments, inputs, ranks, compute)
    if "TORCH_PYTHON" not in os.environ:
        print(f"targets: fp32 {TARGET_SPEED['fp32']} x, bf16 {TARGET_SPEED['bf16']} x PyTorch's speed, {TARGET_MEMORY} x its memory; "
              "TORCH_PYTHON=PYTHON, one with torch and transformers, measures it here")


if __name__ == "__main__":
    main()
