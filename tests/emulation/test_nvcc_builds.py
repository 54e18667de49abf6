"""The program as users with a GPU get it, compiled by nvcc and linked with the real libraries, without cuDNN and with it: it starts, says what is in
it, and trains on CPUs where no GPU can be seen."""
import os
import pathlib
import re
import shutil
import unittest
from unittest import mock

from device_case import EMULATION, DeviceCase, support


def toolkit():
    """Where make looks for nvcc."""
    found = shutil.which("nvcc")
    return pathlib.Path(os.environ.get("CUDA_HOME") or (pathlib.Path(found).resolve().parents[1] if found else "/usr/local/cuda"))


class NvccBuild(DeviceCase):
    def setUp(self):
        super().setUp()
        # no GPU is seen where there is one either
        hidden = mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="")
        hidden.start()
        self.addCleanup(hidden.stop)

    def assert_names_what_is_in_it(self, cudnn):
        lines = support.run("--version").stdout.splitlines()
        gpu = [line for line in lines if line.startswith("GPU ")]
        self.assertRegex("\n".join(gpu), rf"^GPU CUDA \d+\.\d+ for sm_\d+.*; cuBLASLt \d+\.\d+\.\d+; {cudnn}$")
        self.assertTrue(any(re.match(r"NCCL \d+\.\d+", line) for line in lines), lines)

    def assert_trains_on_cpus(self):
        steps = self.train("llama2", support.FIXTURES / "llama2" / "hf", ranks=2, strategy="full_shard")
        self.assertEqual(len(steps), 3)
        self.assert_trains_as_pytorch("llama2", steps)
        told = [line for line in (self.said.stdout + self.said.stderr).splitlines() if "computing on CPUs" in line]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], "computing on CPUs: (no driver is loaded|the driver shows no GPU)")

    @unittest.skipUnless((toolkit() / "bin/nvcc").exists(), "there is no nvcc")
    def test_without_cudnn(self):
        self.choose("nvcc")
        self.assert_names_what_is_in_it("no cuDNN")
        self.assert_trains_on_cpus()

    @unittest.skipUnless((EMULATION / "nvcc-cudnn" / "sherd").exists(), "the build has no cuDNN")
    def test_with_cudnn(self):
        self.choose("nvcc-cudnn")
        self.assert_names_what_is_in_it(r"cuDNN \d+\.\d+\.\d+ \(frontend \d+\.\d+\.\d+\)")
        self.assert_trains_on_cpus()


if __name__ == "__main__":
    unittest.main()
