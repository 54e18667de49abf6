"""What the tests of whole runs on the emulated GPU share: the program with the stand-ins, and how they behave."""
import contextlib
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

import support  # noqa: E402
from fixture_case import FixtureCase, reference  # noqa: E402,F401

EMULATION = support.BUILD / "emulation"
DEVICE = {"device__kind": "cuda"}


@contextlib.contextmanager
def emulated(**variables):
    """order="random", devices=1, ... become EMU_ORDER, EMU_DEVICES, ...; the memory of runs this short is not worth guarding."""
    wanted = {"EMU_HANG_SECONDS": "60", "EMU_GUARD": "0", "SHERD_NVML": str(EMULATION / "libfake_nvml.so"), "OMP_NUM_THREADS": "1"}
    wanted |= {f"EMU_{name.upper()}": str(value) for name, value in variables.items()}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class DeviceCase(FixtureCase):
    """program: `plain` is quick, `checked` sees every access of kernels."""

    def setUp(self):
        super().setUp()
        self.addCleanup(setattr, support, "BUILD", support.BUILD)
        self.choose("plain")

    @staticmethod
    def choose(program):
        support.BUILD = EMULATION / program

    def assert_trains_as_pytorch(self, name, steps):
        numbers, _ = reference(name)
        for line, loss, norm in zip(steps, numbers["loss"], numbers["grad_norm"], strict=False):
            self.assertLess(abs(line["loss"] - loss), 3e-6 * loss, f"{name}, step {line['step']}")
            self.assertLess(abs(line["grad_norm"] - norm), 2e-5 * norm, f"{name}, step {line['step']}")
