#!/usr/bin/env python3
"""Import and export beside a plain copy of the same bytes.

    benchmarks/copy_speed.py [--model smollm2] [--rounds 5]

A random model is made and exported once; then, in turns: copying its folder with every file brought to disk (cp, sync), `sherd import` of the
folder and `sherd export` of what came out. Import and export read, check and bring to disk what they write, too. The files are in the page
cache when they are read, by all three. Medians, as bytes of the weights a second.
"""
import argparse
import os
import pathlib
import shutil
import statistics
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()


def seconds_of(*command):
    start = time.perf_counter()
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a shape of make_random_model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", help="where to work: the disk to measure (the temporary directory)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        place = pathlib.Path(name)
        made, folder, copied = place / "made.h5", place / "hf", place / "copied"
        imported, exported = place / "imported.h5", place / "exported"
        sherd = BUILD / "sherd"
        subprocess.run([BUILD / "tools/make_random_model", options.model, made], check=True, capture_output=True)
        subprocess.run([sherd, "export", "--from", made, "--to", folder], check=True, capture_output=True)
        made.unlink()
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        jobs = {"copy": (("sh", "-c", f"cp -r {folder} {copied} && sync {copied}/* {copied}"), copied),
                "import": ((sherd, "import", "--from", folder, "--to", imported), imported),
                "export": ((sherd, "export", "--from", imported, "--to", exported), exported)}
        times = {job: [] for job in jobs}
        for _ in range(options.rounds):
            for job, (command, output) in jobs.items():
                if output.is_dir():
                    shutil.rmtree(output)
                output.unlink(missing_ok=True)
                os.sync()
                times[job].append(seconds_of(*command))
        copy = statistics.median(times["copy"])
        for job, seconds in times.items():
            middle = statistics.median(seconds)
            print(f"{job:<8} {middle:6.2f} s ({min(seconds):.2f} to {max(seconds):.2f}) {size / middle / 1e6:7.0f} MB/s "
                  f"{copy / middle:5.2f} x the copy's speed")


if __name__ == "__main__":
    main()
