#!/usr/bin/env python3
"""From the start of the process to the first step: what a run does before it trains.

    benchmarks/start_time.py [--model small] [--rounds 5] [--ranks 1 2]

`sherd train` of one step on a random model, timed from outside up to the line of its step, less the step's own time (`step_s` of its
metrics). Beside it, in turns and before it, a plain read of the weights file: the first read of a file that was just written can take a
second, whoever reads.
"""
import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
VOCABULARY = {"tiny": 4096, "small": 8192, "smollm2": 49152}


def seconds_to_start(weights, tokens, directory, ranks):
    shutil.rmtree(directory, ignore_errors=True)
    command = [BUILD / "sherd", "train", f"--model.weights={weights}", f"--data.tokens={tokens}", f"--run.directory={directory}", "--run.steps=1",
               "--batch.tokens=4096", "--batch.micro_tokens=1024"]
    if ranks > 1:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-np", ranks, *command]
    start, seconds = time.perf_counter(), None
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if seconds is None and line.startswith("step 1"):
                seconds = time.perf_counter() - start
    if process.returncode or seconds is None:
        raise SystemExit(f"{command} ended with {process.returncode}")
    step, = (line for line in map(json.loads, (directory / "metrics.jsonl").open()) if line["event"] == "step")
    return seconds - step["step_s"]


def seconds_to_read(path):
    start = time.perf_counter()
    path.read_bytes()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=VOCABULARY, default="small")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        weights, tokens = place / "model.h5", place / "tokens.h5"
        subprocess.run([BUILD / "tools/make_random_model", options.model, weights], check=True, capture_output=True)
        subprocess.run([BUILD / "tools/make_random_tokens", tokens, str(VOCABULARY[options.model]), "64", "256", "1"], check=True,
                       capture_output=True)
        jobs = {"reading the weights": lambda: seconds_to_read(weights),
                **{f"{ranks} rank(s)": lambda ranks=ranks: seconds_to_start(weights, tokens, place / "run", ranks) for ranks in options.ranks}}
        times = {job: [] for job in jobs}
        for _ in range(options.rounds):
            for job, measure in jobs.items():
                times[job].append(measure())
        for job, seconds in times.items():
            print(f"{job:<20} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to {max(seconds):.2f})")


if __name__ == "__main__":
    main()
