"""Full disks, directories that cannot be written, locks, ranks that see different things, and ranks that die."""
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time
import unittest
import unittest.mock

import h5py

import support
from job_case import MPIRUN, JobCase, documents, strict


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not true after {seconds} s")
        time.sleep(0.02)


class SurroundingsCase(JobCase):
    def mount(self, target, *options):
        """Mounts there until the test ends; a test that may not mount is skipped."""
        target.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *map(str, options), str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"cannot mount: {done.stderr.strip()}")
        self.addCleanup(subprocess.run, ["umount", "-l", str(target)], check=True)
        return target

    def read_only(self, source):
        target = self.mount(self.dir / "read-only", "--bind", source)
        done = subprocess.run(["mount", "-o", "remount,ro,bind", str(target)], capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest(f"cannot mount: {done.stderr.strip()}")
        return target

    def long_job(self, ranks=None, **keys):
        line = self.arguments(**{"run__steps": 1_000_000, "run__log_every": 1_000_000, **keys})
        process = self.start([*MPIRUN, "-np", ranks, *line] if ranks else line)
        self.addCleanup(lambda: process.poll() is None and (process.kill(), process.communicate()))
        return process

    def steps_taken(self):
        path = self.run_dir / "metrics.jsonl"
        return path.exists() and path.read_text().count('"event":"step"')


class MemoryLimits(JobCase):
    def test_a_plan_beyond_the_limit_ends_before_the_first_step(self):
        self.refused("device.memory_limit is 1.0 MiB", "largest first: ", "activations ", "batch.micro_tokens = ", "would free ", expect=5,
                     device__memory_limit="1MiB")
        self.assertNotIn('"event":"step"', "".join(path.read_text() for path in self.run_dir.glob("metrics.jsonl")))

    def test_one_rank_of_two_is_named(self):
        self.refused("device.memory_limit is 1.0 MiB", "rank 1", expect=5, ranks=2, device__memory_limit="100GiB,1MiB")
        self.refused("device.memory_limit lists 3 values for 2 ranks", expect=2, ranks=2, device__memory_limit="1GiB,1GiB,1GiB")

    def test_a_gpu_that_is_not_there_is_missed(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="-1"):
            self.refused("device.kind = cuda, and rank 0", expect=5, device__kind="cuda", communication__backend="mpi")
        self.refused("communication.backend = nccl needs GPUs", expect=2, device__kind="cpu", communication__backend="nccl")


@unittest.skipUnless(os.getuid() == 0, "mounts file systems, which takes root")
class FullDisk(SurroundingsCase):
    def setUp(self):
        super().setUp()
        self.disk = self.mount(self.dir / "disk", "-t", "tmpfs", "-o", "size=2m", "none")
        self.run_dir = self.disk / "run"

    def fill(self, leave):
        """Takes all space but `leave` bytes."""
        space = os.statvfs(self.disk)
        with open(self.disk / "filler", "ab") as file:
            file.write(b"\0" * max(0, space.f_bavail * space.f_frsize - leave))

    def test_while_a_checkpoint_is_written(self):
        for ranks in (None, 3):
            self.refused("No space left", "rank-0000", ranks=ranks, checkpoint__every=2)
            self.assertEqual(self.sets(), ["step-00000002"])  # one takes 1.1 MB
            self.assertEqual([line["step"] for line in self.metrics("step")], [1, 2, 3, 4])
            self.assertEqual(os.readlink(self.run_dir / "latest"), "step-00000002")
            support.run("inspect", self.run_dir / "latest", "--verify")
            shutil.rmtree(self.run_dir)

    def test_while_the_manifest_is_written(self):
        with_sets = self.run_dir / "step-00000002"
        self.job(run__stop_step=2)
        rank_files = sum(path.stat().st_size for path in with_sets.glob("rank-*"))
        subprocess.run(["mount", "-o", "remount,size=4m", str(self.disk)], check=True)
        self.fill(rank_files + 24_000)
        self.refused("manifest.h5")
        self.assertEqual(self.sets(), ["step-00000002"])

    def test_while_metrics_are_written(self):
        self.job(run__stop_step=2)
        for leave in (0, 12_000, 40_000):
            self.fill(leave)
            self.refused("No space left" if leave == 0 else "metrics.jsonl", run__steps=1000, ranks=2 if leave > 12_000 else None)
            self.assertEqual(self.sets(), ["step-00000002"])
            if leave > 12_000:
                self.assertGreater(len(self.metrics("step")), 2)
            os.truncate(self.disk / "filler", 0)
            out, _ = self.job("train", "--validate")
            self.assertIn("resumes after step 2", out)
        subprocess.run(["mount", "-o", "remount,size=4m", str(self.disk)], check=True)
        self.job()
        self.assertEqual([line["step"] for line in self.metrics("step")], [1, 2, 3, 4])

    def test_while_importing_and_exporting(self):
        folder = support.copy_fixture("llama2", self.dir / "hf")
        self.fill(200_000)
        for command in (["import", "--from", folder, "--to", self.disk / "w.h5"],
                        ["export", "--from", self.weights, "--to", self.disk / "out"],
                        ["export", "--from", self.weights, "--to", self.disk / "out", "--max-shard-size", "50KB"]):
            err = support.run(*command, expect=4).stderr
            self.assertIn("No space left", err)
            self.assertIn(str(self.disk), err)
            self.assertNotIn("infinite loop", err)
            self.assertEqual(os.listdir(self.disk), ["filler"])


class NoPermission(SurroundingsCase):
    @unittest.skipUnless(os.getuid() == 0, "mounts file systems, which takes root")
    def test_a_read_only_mount(self):
        self.job()
        target = self.read_only(self.dir)
        name = "Read-only file system"
        self.refused(target / "run", name, run__directory=target / "run", run__steps=8)
        self.refused(target / "new", name, run__directory=target / "new", ranks=3)
        for command in (["import", "--from", support.FIXTURES / "llama2" / "hf", "--to", target / "new.h5"],
                        ["export", "--from", self.weights, "--to", target / "out"]):
            err = support.run(*command, expect=4).stderr
            self.assertIn(name, err)
            self.assertIn(str(target), err)
        # reading needs no permission to write, whatever the locks of HDF5 are told
        for locking in ("TRUE", "FALSE", None):
            env = {key: value for key, value in os.environ.items() if key != "HDF5_USE_FILE_LOCKING"}
            if locking:
                env["HDF5_USE_FILE_LOCKING"] = locking
            inputs = {"model.weights": target / "w.h5", "data.tokens": target / "t.h5"}
            line = self.arguments(run__directory=self.dir / f"run-{locking}", run__steps=1, **inputs)
            self.ended(self.start(line, env=env))
            self.ended(self.start(self.arguments("eval", **{**inputs, "model.weights": target / "run" / "latest"}), env=env))
            self.ended(self.start([support.BUILD / "sherd", "inspect", target / "run", "--verify"], env=env))

    @unittest.skipUnless(os.getuid() == 0, "becomes another user, which takes root")
    def test_directories_of_somebody_else(self):
        self.dir.chmod(0o755)
        line = self.arguments()
        process = self.start(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *line], cwd="/")
        _, err = self.ended(process, 4)
        self.assertIn(str(self.run_dir), err)
        self.assertIn("ermission denied", err)

    def test_things_in_the_way(self):
        self.run_dir.write_text("a file")
        self.refused(self.run_dir)
        self.assertEqual(self.run_dir.read_text(), "a file")
        self.run_dir.unlink()
        (self.run_dir / "metrics.jsonl").mkdir(parents=True)
        self.refused(self.run_dir / "metrics.jsonl")


class Locks(SurroundingsCase):
    def test_one_job_a_directory(self):
        other = self.dir / "other"
        other.mkdir()
        with open(other / ".lock", "w") as lock:
            fcntl.lockf(lock, fcntl.LOCK_EX)
            started = time.monotonic()
            refused = self.start([*MPIRUN, "-np", "2", *self.arguments(run__directory=other)])
            first = self.long_job()
            wait_for(self.steps_taken)
            second = self.start(self.arguments(run__steps=self.steps_taken() + 1_000_000, run__stop_step=1, **{"checkpoint.resume": "auto"}))
            time.sleep(1)
            self.assertIsNone(second.poll())
            first.send_signal(signal.SIGTERM)
            self.ended(first, 75)
            out, err = self.ended(second)
            self.assertIn(f"is locked by process {first.pid} on host {socket.gethostname()}", err)
            self.assertIn("nothing left to do", out)
            _, err = self.ended(refused, 3)
            self.assertGreater(time.monotonic() - started, 29)
            self.assertIn(str(other / ".lock"), err)
            self.assertIn("one job a directory", err)
            self.assertEqual(os.listdir(other), [".lock"])


class RanksThatDiffer(SurroundingsCase):
    def both(self, first, second, expect, *parts):
        """Rank 0 runs the first command line, rank 1 the second; each is (words for mpirun, command)."""
        line = [*MPIRUN]
        for words, command in (first, second):
            line += [*([] if line == MPIRUN else [":"]), "-np", "1", *words, *command]
        _, err = self.ended(self.start(line), expect)
        errors = [text for text in err.splitlines() if text.startswith("sherd: error:")]
        self.assertEqual(len(errors), 1, err)
        for part in (*parts, "rank 1", socket.gethostname()):
            self.assertIn(part, errors[0])
        return errors[0]

    def test_decks(self):
        self.both(([], self.arguments(run__seed=1)), ([], self.arguments(run__seed=2)), 3, "deck", "seed = 1", "seed = 2", "rank 0")
        self.both(([], self.arguments()), ([], self.arguments(optimizer__beta1=0.8)), 3, "deck", "beta1 = 0.9", "beta1 = 0.8")

    def test_binaries(self):
        other = self.dir / "sherd"
        other.write_bytes((support.BUILD / "sherd").read_bytes() + b"\0")
        other.chmod(0o755)
        self.both(([], self.arguments()), ([], [str(other), *self.arguments()[1:]]), 3, "binary")

    def test_files_and_directories(self):
        here, there = self.dir / "here", self.dir / "there"
        for folder in (here, there):
            folder.mkdir()
            shutil.copyfile(self.weights, folder / "w.h5")
            shutil.copyfile(self.tokens, folder / "t.h5")
        line = self.arguments(model__weights="w.h5", data__tokens="t.h5")

        def run_both(command, expect, *parts):
            return self.both((["-wdir", here], command), (["-wdir", there], command), expect, *parts)

        self.ended(self.start([*MPIRUN, "-np", "1", "-wdir", here, *line, ":", "-np", "1", "-wdir", there, *line]))  # equal content
        shutil.rmtree(self.run_dir)
        self.write_tokens(there / "t.h5", train=documents(12, 99))
        run_both(line, 4, "data.tokens", "t.h5", "rank 0")
        (there / "t.h5").unlink()
        run_both(line, 4, "t.h5", "does not exist")
        shutil.copyfile(self.tokens, there / "t.h5")
        with h5py.File(there / "w.h5", "a") as file:
            file["model/model.norm.weight"][5] *= 1.001
        run_both(line, 4, "model.weights", "w.h5", "rank 0")
        shutil.copyfile(self.weights, there / "w.h5")
        # a relative directory that is another one on rank 1, as on nodes without a shared file system
        run_both(self.arguments(model__weights="w.h5", data__tokens="t.h5", run__directory="runs/a"), 3, "runs/a", "run.directory", "file system that all nodes share")
        self.assertEqual(sorted(os.listdir(here / "runs/a")), [".lock"])
        self.assertFalse((there / "runs").exists())


class ReadersThatLeave(SurroundingsCase):
    def test_a_closed_pipe_does_not_end_a_run(self):
        # alone: mpirun ends itself, and so the job, when nobody reads its output any more
        job = self.start(self.arguments(run__steps=50))
        job.stdout.readline()
        job.stdout.close()
        self.assertEqual(job.wait(60), 0, job.stderr.read())
        job.stderr.close()
        self.assertEqual(len(self.metrics("step")), 50)


    def test_a_result_that_cannot_be_written_is_an_error(self):
        for command in ([support.BUILD / "sherd", "inspect", self.weights], self.arguments("eval")):
            with self.subTest(command=command[1]), open("/dev/full", "w") as full:
                done = subprocess.run(list(map(str, command)), stdout=full, stderr=subprocess.PIPE, text=True, cwd=support.ROOT)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertIn("could not be written to stdout: No space left on device", done.stderr)


class DyingRanks(SurroundingsCase):
    def ranks_of(self, mpirun):
        text = pathlib.Path(f"/proc/{mpirun.pid}/task/{mpirun.pid}/children").read_text()
        return sorted(pid for pid in map(int, text.split()) if "sherd" in pathlib.Path(f"/proc/{pid}/comm").read_text())

    def test_a_killed_rank_ends_the_job(self):
        for victim in (0, 2):
            job = self.long_job(ranks=3, checkpoint__every=5)
            wait_for(lambda: self.run_dir.exists() and (self.run_dir / "latest").exists())
            ranks = self.ranks_of(job)
            self.assertEqual(len(ranks), 3)
            os.kill(ranks[victim], signal.SIGKILL)
            started = time.monotonic()
            self.ended(job, 137, 30)
            self.assertLess(time.monotonic() - started, 20)
            wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in ranks), 10)
            newest = os.readlink(self.run_dir / "latest")
            out, _ = self.job("train", "--validate", run__steps=1_000_000, ranks=2)
            self.assertIn("resumes after step", out)
            support.run("inspect", self.run_dir / newest, "--verify")
            for line in (self.run_dir / "metrics.jsonl").read_text().splitlines():
                strict(line)
            shutil.rmtree(self.run_dir)

    def test_a_frozen_rank_is_reported_and_ends_the_job(self):
        job = self.long_job(ranks=3, communication__hang_report_s=1, communication__timeout_s=3)
        wait_for(lambda: self.steps_taken() > 20)
        frozen = self.ranks_of(job)[1]
        os.kill(frozen, signal.SIGSTOP)
        try:
            _, err = self.ended(job, 5, 60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(frozen, signal.SIGKILL)
        # where it was frozen decides: in a collective, which knows its ranks, or before an agreement of all
        whom = r"(ranks? [0-9, ]*1[0-9, ]* in '\w+ \w+' of unit \d|another rank in an agreement of all)"
        self.assertRegex(err, rf"sherd: warning: rank \d \(host \S+\) has waited 1 s for {whom}; the run ends after 3 s")
        self.assertRegex(err, rf"sherd: error: rank \d \(host \S+\) has waited 3 s for {whom}, longer than communication.timeout_s")


if __name__ == "__main__":
    unittest.main()
