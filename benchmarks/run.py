#!/usr/bin/env python3
"""Tokens a second and peak memory of training, and beside them PyTorch's on the same work where it is there.

    make bench
    make bench TORCH_PYTHON=~/venv/bin/python BENCH='--rounds 3 --compile'

A random model and random documents of 256 tokens; 4,096 tokens a step in micro-batches of 1,024; one rank with all cores, then two ranks
with half of them each, bound to them, replicated (PyTorch: DDP) and sharded (PyTorch: FSDP2); fp32 and bf16. sherd and PyTorch take turns,
round by round, so that a busy machine hits both. Figures are the median over all steps but each run's first; memory is the highest resident
size of a rank.
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
# times PyTorch's best: replicated, and sharded against FSDP2
TARGET_SPEED = {("no_shard", "fp32"): 1.0, ("no_shard", "bf16"): 0.9, ("sharded", "fp32"): 1.3, ("sharded", "bf16"): 1.0}
TARGET_MEMORY = 0.5
TARGET_OF_NO_SHARD = {"full_shard": 0.95, "shard_grad_op": 0.99}  # speed
PEER_MODE = {"no_shard": "ddp", "full_shard": "full_shard", "shard_grad_op": "shard_grad_op"}


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


def run_sherd(arguments, inputs, ranks, compute, strategy):
    """One run; (tokens/s of each step but the first, bytes)."""
    directory = PLACE / "run"
    shutil.rmtree(directory, ignore_errors=True)
    weights, tokens = inputs
    command = [str(BUILD / "sherd"), "train", f"--model.weights={weights}", f"--data.tokens={tokens}", f"--batch.tokens={TOKENS}",
               f"--batch.micro_tokens={MICRO}", f"--run.steps={arguments.steps}", f"--run.directory={directory}",
               f"--precision.compute={compute}", f"--sharding.strategy={strategy}", "--checkpoint.resume=never"]
    if ranks > 1:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        cores = max(1, len(os.sched_getaffinity(0)) // ranks)
        command = ["mpirun", *root, "--oversubscribe", "--map-by", f"slot:PE={cores}", "--bind-to", "core", "-np", str(ranks), *command]
    check_run(command, ranks)
    steps = [line for line in map(json.loads, (directory / "metrics.jsonl").open()) if line["event"] == "step"]
    shutil.rmtree(directory)
    return [line["tokens_per_s"] for line in steps[1:]], max(line["memory_bytes"] for line in steps)


def run_torch(arguments, ranks, compute, strategy, compiled):
    python = [os.environ["TORCH_PYTHON"]]
    launch = python if ranks == 1 else [*python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command = [*launch, str(ROOT / "benchmarks/torch_peer.py"), "--model", arguments.model, "--compute", compute, "--mode", PEER_MODE[strategy], "--length", str(LENGTH),
               "--tokens", str(TOKENS), "--micro", str(MICRO), "--steps", str(arguments.steps), *(["--compile"] if compiled else [])]
    result = json.loads(check_run(command, ranks).strip().splitlines()[-1])
    return [TOKENS / seconds for seconds in result["seconds"][1:]], result["memory_bytes"]


def compare(arguments, inputs, ranks, compute):
    """Rounds of one case, all strategies and peers interleaved; prints its lines."""
    strategies = arguments.strategies if ranks > 1 else ["no_shard"]
    ours = {s: Measured() for s in strategies}
    theirs = {s: {} for s in strategies}
    for _ in range(arguments.rounds):
        for s in strategies:
            ours[s].add(*run_sherd(arguments, inputs, ranks, compute, s))
            for compiled in [False, True][:1 + arguments.compile] if "TORCH_PYTHON" in os.environ else []:
                peer = theirs[s].setdefault("PyTorch compiled" if compiled else "PyTorch", Measured())
                peer.add(*run_torch(arguments, ranks, compute, s, compiled))
    for s in strategies:
        print(f"{f'{arguments.model} {compute} {ranks} rank(s) {s}':<38} sherd            {ours[s]}", flush=True)
        for name, peer in theirs[s].items():
            print(f"{'':<38} {name:<16} {peer}")
        if theirs[s]:
            speed = ours[s].rate / max(peer.rate for peer in theirs[s].values())
            memory = ours[s].memory / min(peer.memory for peer in theirs[s].values())
            target = TARGET_SPEED["no_shard" if s == "no_shard" else "sharded", compute]
            print(f"{'':<38} ratio            {speed:8.2f} x (target {target:.1f})   memory {memory:.2f} x (target {TARGET_MEMORY})")
        if s in TARGET_OF_NO_SHARD and "no_shard" in ours:
            print(f"{'':<38} to no_shard      {ours[s].rate / ours['no_shard'].rate:8.2f} x (target {TARGET_OF_NO_SHARD[s]})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=VOCABULARY, default="small")
    parser.add_argument("--steps", type=int, default=6, help="of each run; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--compute", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    parser.add_argument("--strategies", nargs="+", choices=PEER_MODE, default=list(PEER_MODE), help="with several ranks")
    parser.add_argument("--compile", action="store_true", help="measure torch.compile too")
    arguments = parser.parse_args()
    if arguments.steps < 2 or arguments.rounds < 1:
        parser.error("at least 2 steps and 1 round")
    inputs = make_inputs(arguments.model, arguments.steps)
    for ranks in arguments.ranks:
        for compute in arguments.compute:
            compare(arguments, inputs, ranks, compute)
    if "TORCH_PYTHON" not in os.environ:
        print(f"targets: {TARGET_SPEED} x PyTorch's speed, {TARGET_MEMORY} x its memory; "
              "TORCH_PYTHON=PYTHON, one with torch and transformers, measures it here")


if __name__ == "__main__":
    main()
