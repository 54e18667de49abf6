"""Every call of the CUDA runtime, cuBLASLt and NCCL that a training run makes fails in turn, on one rank of two or the other: the run ends with
exit code 5 on all ranks, and says which call failed on which rank. Of the calls of a name the first and the middle one are tried: how often a run polls
differs from run to run."""
import re
import time
import unittest

from device_case import DEVICE, DeviceCase, emulated, support

NAME = "llama_biases"
# what is only given back: by then the run has succeeded, and says so
RELEASES = ("cudaFree", "cudaFreeHost", "cudaEventDestroy", "cudaStreamDestroy", "cublasLtDestroy", "cudnnDestroy", "cublasLtMatmulDescDestroy",
            "cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceDestroy", "ncclCommDestroy", "ncclCommFinalize", "ncclCommAbort")
# nothing depends on these: words for the banner, and questions that a checked call asks again
CURIOSITY = ("cudaDriverGetVersion", "cudaStreamQuery", "cudaEventQuery")
# a wait left out fails nothing; a copy to the host is tried as the call that it is
NO_CALLS = ("useful wait", "copy to host")
OUT_OF_MEMORY = " out of memory"  # behind a call's name: it fails with that error
# calls whose failure is told in other words: out of memory says for what; and NCCL asks for the device on its own behalf
OTHER_WORDS = {f"kernel{OUT_OF_MEMORY}": "the launch of", "cudaMalloc": "cannot allocate", "cudaHostAlloc": "cannot pin",
               "cudaGetDevice": "ncclCommInitRankConfig"}
# calls of cuDNN's frontend: those that build a plan, and the one that runs it
PLANNING = ("validate", "build_operation_graph", "create_execution_plans", "check_support", "build_plans", "get_workspace_size")
# how a collective under way is asked after: at least twice for each, and as often again as time permits
POLLS = ("asynchronous error", "ncclCommGetAsyncError")
COLLECTIVES = ("ncclAllGather", "ncclReduceScatter", "ncclAllReduce", "ncclGroupEnd")


class Failures(DeviceCase):
    def command(self, run, **keys):
        numbers = {"model.weights": support.FIXTURES / NAME / "hf", "data.tokens": self.tokens, "data.shuffle": "false", "run.steps": 1,
                   "run.directory": self.dir / run, "batch.sequences": 3, "precision.compute": "fp32", "sharding.strategy": "full_shard",
                   "device.threads": 1, "device.kind": "cuda", "communication.timeout_s": 5, **keys}
        return ["train", *(f"--{key}={value}" for key, value in numbers.items())]

    def setUp(self):
        super().setUp()
        self.tokens = self.write_tokens(NAME, ("train",))

    def counts(self, run="counted", **keys):
        with emulated(calls=self.dir / "calls"):
            support.run(*self.command(run, **keys), ranks=2)
        lines = (self.dir / "calls.1").read_text().splitlines()
        return {name: int(count) for name, count in (line.rsplit(" ", 1) for line in lines)}

    def test_each_call_fails_in_turn(self):
        counts = self.counts()
        self.assertGreater(len(counts), 25)
        collectives = sum(counts.get(name, 0) for name in COLLECTIVES)
        self.assertGreater(collectives, 3)
        for i, (name, count) in enumerate(counts.items()):
            if name in (*RELEASES, *CURIOSITY, *NO_CALLS):
                continue
            middle = collectives if name in POLLS else (count + 1) // 2
            for n in sorted({1, middle}):
                rank = (i + n) % 2
                with self.subTest(f"{name}, call {n}, rank {rank}"), emulated(fail=f"{name}:{n}@{rank}"):
                    done = support.run(*self.command(f"{name}-{n}"), ranks=2, expect=5)
                    self.assertIn(f"rank {rank}", done.stderr)
                    if name not in ("kernel", *POLLS):  # these speak of what was under way
                        self.assertRegex(done.stderr, f"{name.removesuffix(OUT_OF_MEMORY)}|{OTHER_WORDS.get(name, name)}")

    def test_collectives_of_other_runs_fail(self):
        """Calls that the run above does without; over MPI there are none, but more is copied, and by functions of the stream."""
        covered = self.counts()
        for run, keys, calls in (("bf16", {"sharding.shares": "3,1", "precision.reduce": "bf16"}, ("ncclRecv", "ncclSend")),
                                 ("mpi", {"communication.backend": "mpi"}, ("cudaMemcpyAsync", "cudaLaunchHostFunc"))):
            counts = self.counts(run, **keys)
            self.assertEqual(set(counts) - set(covered), set(calls) - set(covered))
            for rank, name in enumerate(calls):
                n = (counts[name] + 1) // 2 if name in covered else 1
                with self.subTest(f"{name}, {run}"), emulated(fail=f"{name}:{n}@{rank}"):
                    done = support.run(*self.command(f"{run}-{name}", **keys), ranks=2, expect=5)
                    self.assertIn(f"rank {rank}", done.stderr)
                    self.assertIn(name, done.stderr)

    def test_cudnn_fails(self):
        """A plan that is not to be had is own kernels' matter where cuDNN is not demanded; a call that fails is an error."""
        wanted = {"precision.compute": "bf16", "model.weights": support.FIXTURES / "mistral_sliding" / "hf"}
        self.tokens = self.write_tokens("mistral_sliding", ("train",))
        for name in ("cudnnSetStream", "execute", *PLANNING):
            with self.subTest(name), emulated(fail=f"{name}:{3 if name in PLANNING else 1}@1"):  # two plans are made for the memory's sake
                done = support.run(*self.command(name, **wanted, **{"device.attention": "cudnn"}), ranks=2, expect=5)
                self.assertRegex(done.stderr, name)
        for name in PLANNING[::3]:
            with self.subTest(name), emulated(fail=f"{name}:1@0"):
                done = support.run(*self.command(f"auto-{name}", **wanted), ranks=2)
                self.assertIn(f"own kernels' instead of cuDNN's: {name}", done.stderr)

    def test_a_start_of_nccl_that_fails_late_ends_all_ranks_at_once(self):
        """On rank 2 the call that begins a communicator succeeds, and what it began fails; nothing tells the others but that rank itself."""
        before = time.monotonic()
        with emulated(fail="asynchronous error:1@2"):
            done = support.run(*self.command("run", **{"communication.timeout_s": 300}), ranks=3, expect=5)
        self.assertLess(time.monotonic() - before, 30)
        self.assertRegex(done.stderr, r"the start of a communicator of 3 ranks.*\(rank 2, host ")

    def test_what_cannot_be_given_back_harms_nobody(self):
        for name in RELEASES:
            with self.subTest(name), emulated(fail=f"{name}:1@1"):
                support.run(*self.command(name), ranks=2)

    def test_out_of_memory_says_who_holds_what(self):
        with emulated(memory_bytes=72_000_000):
            done = support.run(*self.command("run"), ranks=2, expect=5)
        self.assertRegex(done.stderr, r"of memory are needed on cuda: Emulated GPU.*, and 68.7 MiB of 68.7 MiB are free")
        held = done.stderr[done.stderr.index("largest first: "):].split(". ")[0]
        sizes = [float(number) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20}[unit] for number, unit in re.findall(r"([\d.]+) (bytes|KiB|MiB)", held)]
        self.assertGreater(len(sizes), 10)
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        for name in ("workspace of stream 'compute' 32.0 MiB", "activations", "exp_avg (world)", "gradients of units"):
            self.assertIn(name, held)
        self.assertRegex(done.stderr, r"batch.micro_tokens = \d+ (would free )?[\d.]+ MiB")

    def assert_tells_of_memory(self, text, rank):
        """What is free, what the rank holds, largest first, and which keys would free how much."""
        self.assertRegex(text, r"[\d.]+ GiB of 4.0 GiB are free\. This rank holds [\d.]+ MiB: ")
        held = text[text.index("This rank holds"):].split(": ", 1)[1].split(". ")[0]
        sizes = [float(number) * {"bytes": 1, "KiB": 2**10, "MiB": 2**20}[unit] for number, unit in re.findall(r"([\d.]+) (bytes|KiB|MiB)", held)]
        self.assertGreater(len(sizes), 5)
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        total = re.search(r"This rank holds ([\d.]+) MiB", text)[1]
        self.assertAlmostEqual(sum(sizes) / 2**20, float(total), delta=0.05 * len(sizes), msg=held)
        for name in ("workspace of stream 'compute' 32.0 MiB", "activations", "workspace"):
            self.assertIn(name, held)
        self.assertRegex(text, r"batch.micro_tokens = 2048 (would free )?[\d.]+ MiB")
        self.assertRegex(text, rf"\(?rank {rank}\b")
        self.assertEqual(text.count("This rank holds"), 1)
        self.assertEqual(text.count("would free"), 1)

    def test_memory_that_ends_in_a_run_says_who_holds_what(self):
        """In the middle of a step and of an evaluation, where one rank ends the others, and while weights are loaded, where all agree."""
        calls = self.counts()
        self.assertGreater(calls["kernel"], 50)
        for name, nth, rank, words in (("kernel", calls["kernel"] // 2, 0, r"the launch of \w+"),
                                       ("cublasLtMatmul", calls["cublasLtMatmul"] // 2, 1, "cublasLtMatmul")):
            with self.subTest(f"{name} {nth}"), emulated(fail=f"{name}{OUT_OF_MEMORY}:{nth}@{rank}"):
                done = support.run(*self.command(f"{name}-{nth}"), ranks=2, expect=5)
                self.assertRegex(done.stderr, words + r".* failed at \S+:\d+ on rank \d \(host \S+\): .*out of memory \(\w+\)")
                self.assert_tells_of_memory(done.stderr, rank)
        with emulated(fail=f"kernel{OUT_OF_MEMORY}:1@1"):
            done = support.run(*self.command("load", **{"precision.compute": "bf16"}), ranks=2, expect=5)
        self.assertRegex(done.stderr, r"the launch of cast.* \(rank 1, host \S+\)")
        self.assertNotIn("MPI_ABORT", done.stderr)
        self.assert_tells_of_memory(done.stderr, 1)
        self.tokens = self.write_tokens(NAME)
        with emulated(fail=f"kernel{OUT_OF_MEMORY}:5@0"):
            done = support.run("eval", *self.command("eval")[1:], ranks=2, expect=5)
        self.assert_tells_of_memory(done.stderr, 0)


if __name__ == "__main__":
    unittest.main()
