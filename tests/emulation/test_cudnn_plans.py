"""The real cuDNN takes the program's graphs: plans for GPUs that are not there, and the workspace they want, which the stand-in and the documents
repeat. Skipped where the build has no cuDNN. Nothing is computed."""
import json
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve() / "emulation" / "cudnn"
# as the library writes those of a device; what it asks of them is the version, shared memory and the number of multiprocessors
COMMON = {"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, "warpSize": 32,
          "maxSharedMemoryPerBlock": 49152, "reservedSharedMemoryPerBlock": 1024, "maxRegistersPerSM": 65536, "maxCtasPerSM": 32,
          "maxThreadsPerBlock": 1024, "maxThreadsPerSM": 2048, "pciDeviceId": 0, "isTccDriver": 0, "supportCoopLaunch": 1,
          "totalGlobalMem": 150754820096, "smClockRateKHz": 1980000, "memClockRateKHz": 3201000, "l2CacheSize": 62914560, "cudaDeviceId": 0,
          "driverVer": 13000}
DEVICES = {80: {"deviceVer": 800, "multiProcessorCount": 108, "maxSharedMemoryPerBlockOptin": 166912, "deviceName": "NVIDIA A100"},
           90: {"deviceVer": 900, "multiProcessorCount": 132, "maxSharedMemoryPerBlockOptin": 232448, "deviceName": "NVIDIA H200"},
           100: {"deviceVer": 1000, "multiProcessorCount": 148, "maxSharedMemoryPerBlockOptin": 232448, "deviceName": "NVIDIA B200"}}
# heads, key heads, size of a head; type, window; documents, longest, rows. A plan takes up to a second
GRAPHS = (((32, 8, 128), ("bf16", 0), (1, 4096, 4096)), ((32, 8, 128), ("bf16", 100), (4, 1280, 4096)), ((32, 32, 128), ("bf16", 0), (64, 128, 4096)),
          ((9, 3, 64), ("fp16", 0), (4, 1280, 4096)), ((9, 3, 64), ("bf16", 1), (1, 128, 16)), ((4, 4, 16), ("bf16", 0), (1024, 128, 65536)),
          ((2, 1, 8), ("fp16", 0), (4, 1280, 4096)))


def graphs(backward):
    """[(words of a line, bytes that a deterministic pass needs on Hopper beside its matrix, bytes of that matrix)]"""
    for (heads, kv_heads, size), (kind, window), (documents, longest, rows) in GRAPHS:
        words = f"{'backward' if backward else 'forward'} {kind} {heads} {kv_heads} {size} {window} {documents} {longest} {rows}"
        held, each = (rows, 4) if size % 16 == 0 else (documents * longest, 2)
        shared = 2 * held * heads * size * each if heads != kv_heads else 0
        yield words, shared + held * heads * 4, documents * heads * longest * longest * 2


@unittest.skipUnless((BUILD / "plans").exists(), "the build has no cuDNN")
class Plans(unittest.TestCase):
    def said(self, capability, lines):
        command = [BUILD / "plans", str(capability), json.dumps(COMMON | DEVICES[capability])]
        paths = f"{BUILD}:{os.environ.get('LD_LIBRARY_PATH', '')}"
        done = subprocess.run(command, input="\n".join(lines), env=dict(os.environ, LD_LIBRARY_PATH=paths), capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        answers = done.stdout.splitlines()
        self.assertEqual(len(answers), len(lines), done.stderr)
        return list(zip(lines, answers, strict=True))

    def test_forward_everywhere(self):
        for capability in DEVICES:
            for line, answer in self.said(capability, [words for words, *_ in graphs(False)]):
                with self.subTest(f"sm_{capability} {line}"):
                    self.assertRegex(answer, r"^workspace \d+$")
                    self.assertLessEqual(int(answer.split()[1]), 1 << 20)

    def test_gradients_on_hopper_want_a_matrix(self):
        wanted = {words: (other, matrix) for words, other, matrix in graphs(True)}
        for line, answer in self.said(90, list(wanted)):
            with self.subTest(line):
                self.assertRegex(answer, r"^workspace \d+$")
                other, matrix = wanted[line]
                self.assertGreaterEqual(int(answer.split()[1]), other + matrix)
                self.assertLessEqual(int(answer.split()[1]), other + 2 * matrix + (1 << 20))

    def test_gradients_on_blackwell_want_none(self):
        wanted = {words: other for words, other, _ in graphs(True)}
        for line, answer in self.said(100, list(wanted)):
            with self.subTest(line):
                self.assertRegex(answer, r"^workspace \d+$")
                self.assertLessEqual(int(answer.split()[1]), wanted[line] + (1 << 20))

    def test_deterministic_gradients_are_not_ampere_s(self):
        for line, answer in self.said(80, [words for words, *_ in graphs(True)]):
            with self.subTest(line):
                self.assertRegex(answer, "^refused validate: Deterministic algorithm is not supported for bprop thd on SM8X")

    def test_what_no_gpu_takes_is_refused(self):
        for capability in DEVICES:
            for line, answer in self.said(capability, ["forward bf16 4 4 12 0 1 128 128", "backward bf16 4 3 64 0 1 128 128"]):
                with self.subTest(f"sm_{capability} {line}"):
                    self.assertRegex(answer, "^refused validate: ")


if __name__ == "__main__":
    unittest.main()
