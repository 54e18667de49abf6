"""Does anyone notice? Each barrier and wait of every kernel is left out in turn, and the checked build must report it.

The emulation leaves it out at run time (EMU_DELETE=FILE:LINE): nothing is compiled again. Only tests that reach the place are run, quick
ones first.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
KERNELS = BUILD / "emulation" / "checked" / "kernels"
PLACE = re.compile(r"__sync(?:threads|warp)\w*\s*\(|(?<!void )wait_for_copies\s*\(")
REPORT = re.compile(r"kernel .*?: .*|C\+\+ exception with description \"(.*)\" thrown")
BATCHES = (2, 8, 10_000)  # tests that are tried together: most mutants fall to the first two


def places():
    """FILE:LINE of every barrier and wait, without comments."""
    found = []
    for path in sorted((ROOT / "src/backend/cuda").glob("*.cu*")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if PLACE.search(line.split("//")[0]):
                found.append(f"{path.name}:{number}")
    return found


def tests_by_place():
    """{place: names of the tests that reach it, quick ones first}"""
    with tempfile.NamedTemporaryFile("r", suffix=".tsv") as file:
        subprocess.run([KERNELS, "--gtest_brief=1"], cwd=ROOT, env=dict(os.environ, EMU_PLACES=file.name), check=True, capture_output=True)
        lines = [line.rstrip("\n").split("\t") for line in file]
    reached = {}
    for milliseconds, name, *at in sorted(lines, key=lambda line: int(line[0])):
        for place in at:
            reached.setdefault(place, []).append(name)
    return reached


def report_without(place, tests):
    """What the emulation says when that place is left out: its message, None where no test fails."""
    rest = list(tests)
    for size in BATCHES:
        batch, rest = rest[:size], rest[size:]
        if not batch:
            break
        command = [KERNELS, f"--gtest_filter={':'.join(batch)}", "--gtest_fail_fast"]
        done = subprocess.run(command, cwd=ROOT, env=dict(os.environ, EMU_DELETE=place), capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            found = REPORT.search(done.stdout + done.stderr)
            return found.group(0) if found else f"a wrong result, and no report: {done.stdout[-500:]}"
    return None


class Mutants(unittest.TestCase):
    def test_every_barrier_left_out_is_reported(self):
        reached, all_places = tests_by_place(), places()
        self.assertGreater(len(all_places), 10)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            reports = list(pool.map(lambda place: report_without(place, reached.get(place, [])), all_places))
        for place, report in zip(all_places, reports, strict=True):
            with self.subTest(place):
                self.assertIn(place, reached, "no test reaches it")
                self.assertIsNotNone(report, "left out, and no test noticed")
                self.assertRegex(report, r"race|nobody in the block has written|barrier|hangs|waits?", report)
            print(f"{place} left out: {report}")


if __name__ == "__main__":
    unittest.main()
