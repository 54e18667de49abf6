#!/usr/bin/env python3
"""Runs all tests and counts them. The last line is `N passed, N failed`, after one that counts skips where there are any; exit code 1 on a failure.

    /usr/bin/python3 tests/run.py [--quick | --full | --emulation] [--only GROUP ...]

Groups: `unit` (GoogleTest), `distributed-1` to `distributed-5` or `-6` (GoogleTest under mpirun, a group for each number of ranks) and one for each
file tests/e2e/test_*.py, named without `test_` and `.py`. --only takes the start of a name too (`distributed`). A group that crashes, hangs
or runs no test is a failure of its own. --quick leaves out more than 3 ranks, --full adds 6; --emulation runs the tests of the CUDA side
(tests/emulation) instead: GoogleTest programs of its builds, and each test_*.py. End-to-end tests find `quick`, `normal` or `full` in SHERD_TESTS. SHERD_BUILD is the build folder (build).
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[1]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
MOST_SHOWN = 20_000  # characters of a failed group's output; the end says what went wrong


@dataclass
class Group:
    """One process that runs tests and leaves a report. `cores`: how many of the two places for groups it takes."""
    name: str
    command: list
    seconds: float
    cores: int
    threads: int


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    output: str = ""


def mpirun(ranks):
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-np", str(ranks)]


def all_groups(mode):
    """Every group, long ones of the end-to-end tests first so that two places stay busy to the end."""
    patience = 8 if mode == "full" else 1
    groups = [Group("unit", [str(BUILD / "tests/unit"), "--gtest_brief=1"], 600 * patience, 2, 2)]
    for ranks in range(1, {"quick": 4, "full": 7}.get(mode, 6)):
        command = [*mpirun(ranks), str(BUILD / "tests/distributed"), "--gtest_brief=1"]
        groups.append(Group(f"distributed-{ranks}", command, 180 * patience, 2, 1))
    files = sorted((ROOT / "tests/e2e").glob("test_*.py"), key=lambda path: (-path.stat().st_size, path.name))
    for path in files:
        groups.append(Group(path.stem.removeprefix("test_"), [sys.executable, __file__, "--file", str(path)], 700 * patience, 1, 1))
    return groups


def emulation_groups():
    """The programs of tests/emulation in both builds, those of kernels first because they take longest, and its files."""
    groups = []
    for name, pattern in (("kernels", "kernels_*_test.*"), ("backend", "backend_*_test.*"), ("own", "*_test.*")):
        for build in ("checked", "asan"):
            if any((ROOT / "tests/emulation").glob(pattern)):
                groups.append(Group(f"{name}-{build}", [str(BUILD / "emulation" / build / name), "--gtest_brief=1"], 400, 1, 1))
    for path in sorted((ROOT / "tests/emulation").glob("test_*.py")):
        groups.append(Group(path.stem.removeprefix("test_"), [sys.executable, __file__, "--file", str(path)], 500, 1, 1))
    return groups


class Runner:
    """Starts groups and stops them when they take too long or when the user ends everything."""

    def __init__(self, mode):
        self.mode = mode
        self.lock = threading.Lock()
        self.running = set()

    def environment(self, group):
        env = dict(os.environ, SHERD_TESTS=self.mode, SHERD_BUILD=str(BUILD), PYTHONDONTWRITEBYTECODE="1")
        env.setdefault("OMP_NUM_THREADS", str(group.threads))
        # containers often forbid one process to read another's memory; Open MPI then fails instead of copying
        env.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        return env

    def run(self, group):
        with tempfile.TemporaryDirectory(prefix="sherd-tests-") as folder:
            report = pathlib.Path(folder) / "report.json"
            option = "--report=" if "--file" in group.command else "--gtest_output=json:"
            start = time.monotonic()
            code, output = self.start(group, [*group.command, f"{option}{report}"])
            return judge(group, code, output, report, time.monotonic() - start)

    def start(self, group, command):
        """(exit code, output); the code is None after a timeout, and where the program could not be started."""
        with tempfile.TemporaryFile() as sink:  # not a pipe: a process left behind would keep it open
            try:
                process = subprocess.Popen(command, cwd=ROOT, env=self.environment(group), stdin=subprocess.DEVNULL, stdout=sink,
                                           stderr=subprocess.STDOUT, start_new_session=True)
            except OSError as error:
                return None, f"cannot start: {error}"
            with self.lock:
                self.running.add(process)
            note = ""
            try:
                code = process.wait(group.seconds)
            except subprocess.TimeoutExpired:
                code, note = None, f"\n{group.name}: no end after {group.seconds:.0f} s"
                stop(process)
            with self.lock:
                self.running.discard(process)
            sink.seek(0)
            return code, sink.read().decode(errors="replace") + note

    def stop_all(self):
        with self.lock:
            processes = list(self.running)
        for process in processes:
            stop(process)


def stop(process):
    """TERM first: mpirun then ends its ranks, which are in process groups of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def judge(group, code, output, report, seconds):
    """What a group's report and exit code say together. Without a report nothing is known to have passed."""
    outcome = Outcome(seconds=seconds, output=output)
    try:
        data = json.loads(report.read_text())
        counts = count_gtest(data) if "testsuites" in data else data
        outcome.passed, outcome.failed, outcome.skipped = counts["passed"], counts["failed"], counts["skipped"]
    except (OSError, ValueError) as error:
        outcome.output += f"\n{group.name}: no report ({error.__class__.__name__}): it crashed or never began"
    if outcome.passed + outcome.failed + outcome.skipped == 0:
        outcome.output += f"\n{group.name}: ran no test"
        outcome.failed = 1
    elif code != 0 and outcome.failed == 0:
        outcome.failed = 1
    if code not in (0, 1):
        outcome.output += f"\n{group.name}: ended with {'no exit code' if code is None else code}"
    return outcome


def count_gtest(data):
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    for suite in data["testsuites"]:
        for test in suite["testsuite"]:
            if test.get("failures"):
                counts["failed"] += 1
            elif test["result"] == "SKIPPED":
                counts["skipped"] += 1
            elif test["result"] == "COMPLETED":
                counts["passed"] += 1
    return counts


def run_file(path, report):
    """The child's side of an end-to-end group: one unittest file, its counts as JSON."""
    import unittest

    class Counting(unittest.TextTestResult):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.good = 0

        def addSuccess(self, test):
            super().addSuccess(test)
            self.good += 1

    sys.path.insert(0, str(path.parent))
    suite = unittest.defaultTestLoader.loadTestsFromName(path.stem)
    result = unittest.TextTestRunner(resultclass=Counting, verbosity=1).run(suite)
    # several subtests of one test may fail: it is one test
    bad = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    bad |= {test.id() for test in result.unexpectedSuccesses}
    counts = {"passed": result.good + len(result.expectedFailures), "failed": len(bad), "skipped": len(result.skipped)}
    pathlib.Path(report).write_text(json.dumps(counts))
    for test, reason in result.skipped:
        print(f"skipped {test.id()}: {reason}")
    return 0 if not bad else 1


def tell(group, outcome):
    text = f"{group.name:<16} {outcome.passed:5} passed {outcome.failed:4} failed"
    if outcome.skipped:
        text += f" {outcome.skipped:4} skipped"
    if outcome.failed:
        shown = outcome.output.strip()[-MOST_SHOWN:]
        text += f"   {outcome.seconds:.1f} s\n{'-' * 20} output of {group.name}\n{shown}\n{'-' * 20}"
    else:
        text += f"   {outcome.seconds:.1f} s"
        text += "".join(f"\n    {line}" for line in outcome.output.splitlines() if line.startswith("skipped "))
    sys.stdout.write(text + "\n")  # one write: two groups may end at once
    sys.stdout.flush()


def run_groups(groups, runner):
    """Groups that use both cores one after another, then the others two at a time; of the CUDA side's three, since one waits for processes to
    end most of the time."""
    outcomes = []

    def one(group):
        outcome = runner.run(group)
        tell(group, outcome)
        outcomes.append(outcome)

    for group in groups:
        if group.cores == 2:
            one(group)
    with concurrent.futures.ThreadPoolExecutor(3 if runner.mode == "emulation" else 2) as pool:
        pending = [pool.submit(one, group) for group in groups if group.cores == 1]
        try:
            for future in pending:
                future.result()
        except BaseException:
            for future in pending:
                future.cancel()
            runner.stop_all()  # else leaving this block would wait for what runs
            raise
    return outcomes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="GROUP", nargs="+", help="only these groups")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--quick", action="store_const", dest="mode", const="quick", default="normal")
    modes.add_argument("--full", action="store_const", dest="mode", const="full")
    modes.add_argument("--emulation", action="store_const", dest="mode", const="emulation", help="the CUDA side, without a GPU")
    parser.add_argument("--file", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.file:
        return run_file(arguments.file, arguments.report)

    groups = emulation_groups() if arguments.mode == "emulation" else all_groups(arguments.mode)
    for wanted in arguments.only or []:
        if not any(group.name.startswith(wanted) for group in groups):
            parser.error(f"there is no group '{wanted}': {', '.join(group.name for group in groups)}")
    if arguments.only:
        groups = [group for group in groups if any(group.name.startswith(wanted) for wanted in arguments.only)]
    runner = Runner(arguments.mode)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        outcomes = run_groups(groups, runner)
    except KeyboardInterrupt:
        runner.stop_all()
        print("interrupted", file=sys.stderr)
        return 130
    passed, failed, skipped = (sum(getattr(outcome, name) for outcome in outcomes) for name in ("passed", "failed", "skipped"))
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
