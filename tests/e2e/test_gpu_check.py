"""The check that is prepared for machines with a GPU (tests/gpu), tried on CPUs: its parts run, its figures add up, what fails is told."""
import json
import os
import pathlib
import stat
import subprocess
import sys
import tempfile
import unittest

import support

CHECK = support.ROOT / "tests" / "gpu" / "check"
sys.path.insert(0, str(CHECK.parent))

import machine  # noqa: E402
import models  # noqa: E402


class Check(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sherd-gpu-check-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def check(self, *options, expect, build=support.BUILD):
        """(stdout, results)"""
        report = self.dir / "check.json"
        done = subprocess.run([CHECK, f"--json={report}", f"--folder={self.dir}", *options], cwd=self.dir, capture_output=True, text=True,
                              timeout=300, env={**os.environ, "SHERD_BUILD": str(build)})
        self.assertEqual(done.returncode, expect, done.stdout + done.stderr)
        self.assertEqual(done.stderr, "")
        return done.stdout, json.loads(report.read_text()) if report.exists() else None

    def test_all_parts_run_on_a_cpu(self):
        said, results = self.check("--device=cpu", "--tiny", "--parallel=2", expect=0)
        states = {name: part["state"] for name, part in results["parts"].items()}
        self.assertEqual(states, {"kernels": "skipped", "fixtures": "passed", "curve": "passed", "two_ranks": "passed", "tiny": "passed"})
        tiny = results["parts"]["tiny"]["data"]
        self.assertEqual(tiny["parameters"], 3_171_744)
        self.assertAlmostEqual(tiny["TFLOP/s"] * 1e12, tiny["tokens/s"] * tiny["flops of a token"], delta=1)
        self.assertGreater(tiny["memory_bytes"], 3_171_744 * 16)
        operations = tiny["kernels"]["operations"]
        self.assertAlmostEqual(sum(line["share"] for line in operations), 1, places=9)
        sums = [tiny["kernels"]["sum of step"]]
        while not 0.3 < sums[-1] < 1.5 and len(sums) < 4:  # of two moments, between which the machine's load may change
            _, again = self.check("--device=cpu", "--tiny", "--part", "tiny", expect=0)
            sums.append(again["parts"]["tiny"]["data"]["kernels"]["sum of step"])
        self.assertTrue(0.3 < sums[-1] < 1.5, sums)
        # of the products, all of the model's multiplications: three times two a parameter and token
        products = sum(line["flops"] * line["calls"] for line in operations if line["operation"].startswith("linear_"))
        self.assertAlmostEqual(products / 128, 6 * (3_171_744 - 5 * 288), delta=1)
        for line in operations:
            self.assertIn(line["operation"], said)

    def test_a_part_that_fails_is_told_and_the_others_go_on(self):
        build = self.dir / "build"
        (build / "tools").mkdir(parents=True)
        for tool in (support.BUILD / "tools").iterdir():
            (build / "tools" / tool.name).symlink_to(tool)
        program = build / "sherd"
        program.write_text("#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho this one is broken >&2\nexit 5\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        said, results = self.check("--device=cpu", "--tiny", "--part", "fixtures", "curve", "tiny", expect=1, build=build)
        for name in ("fixtures", "curve", "tiny"):
            self.assertEqual(results["parts"][name]["state"], "failed")
            self.assertIn("this one is broken", results["parts"][name]["error"])
            self.assertIn(name, said)

    @unittest.skipIf(not isinstance(machine.find_gpu(), str), "this machine has a GPU")
    def test_without_a_gpu_it_says_so(self):
        said, results = self.check(expect=3)
        self.assertRegex(said, r"^no GPU to check: .*\n$")
        self.assertIsNone(results)

    def test_names_and_sizes(self):
        self.assertEqual(machine.peaks_of("NVIDIA H200"), (989e12, 4.8e12))
        self.assertEqual(machine.peaks_of("NVIDIA GH200 480GB")[1], 4.0e12)
        self.assertEqual(machine.peaks_of("a GPU of 2031"), (None, None))
        sizes = {model.name: model for model in models.MODELS}
        self.assertEqual(sizes["smollm2"].parameters, 134_515_008)
        self.assertEqual(sizes["llama1b"].parameters, 1_235_814_400)
        self.assertEqual(sizes["llama8b"].parameters, 8_030_261_248)
        self.assertIn(sizes["llama8b"].fitting(143771 * 2**20), range(26, 32))
        self.assertEqual(sizes["llama8b"].fitting(10**13), 32)


if __name__ == "__main__":
    unittest.main()
