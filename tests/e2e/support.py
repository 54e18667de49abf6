"""What the end-to-end tests share: running the program and checking how it ends."""
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
FORBIDDEN = ("terminate called", "HDF5-DIAG", "Segmentation fault", "Backtrace")


def run(*args, ranks=None, expect=0, cwd=None):
    """Runs sherd, under mpirun where ranks is given; fails unless it ends with the expected exit code. Returns the process with its texts."""
    command = [str(BUILD / "sherd"), *map(str, args)]
    if ranks is not None:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "-np", str(ranks), *command]
    done = subprocess.run(command, cwd=cwd or ROOT, capture_output=True, text=True, timeout=300)
    told = f"{' '.join(command)}\nexit {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == expect, told
    for word in FORBIDDEN:
        assert word not in done.stdout + done.stderr, told
    return done
