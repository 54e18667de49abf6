"""Does every kernel say how large its blocks may be?

Without __launch_bounds__ the compiler may give a kernel more registers than a large block of it can have: such a launch fails, and on a GPU
only.
"""
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KERNEL = re.compile(r"__global__\s+void\s+(__launch_bounds__\s*\()?(?:[^(]*?(\w+)\s*\()?")


class LaunchBounds(unittest.TestCase):
    def test_every_kernel_has_them(self):
        files = sorted((ROOT / "src/backend/cuda").glob("*.cu*"))
        kernels = [(path.name, match) for path in files for match in KERNEL.finditer(path.read_text())]
        self.assertGreater(len(kernels), 20)
        for file, match in kernels:
            with self.subTest(f"{file}: {match.group(2)}"):
                self.assertTrue(match.group(1), "no __launch_bounds__")


if __name__ == "__main__":
    unittest.main()
