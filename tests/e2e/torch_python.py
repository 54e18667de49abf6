"""A Python with PyTorch and transformers, where there is one: $TORCH_PYTHON, or the environment that `make test-full` makes below build/."""
import json
import os
import pathlib
import subprocess

import support

SIDE = pathlib.Path(__file__).with_name("torch_side.py")


def find():
    """(its path, None) or (None, why there is none)."""
    python = os.environ.get("TORCH_PYTHON") or str(support.BUILD / "venv" / "torch" / "bin" / "python")
    if not pathlib.Path(python).exists():
        return None, f"{python} is not there: set TORCH_PYTHON to a Python with torch and transformers, or run make test-full"
    return python, None


def call(python, *arguments, seconds=1800):
    """Runs torch_side.py; returns its last line as JSON, or None where it prints none."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRANSFORMERS_VERBOSITY": "error"}
    env.pop("PYTHONPATH", None)
    done = subprocess.run([python, str(SIDE), *map(str, arguments)], capture_output=True, text=True, timeout=seconds, env=env)
    assert done.returncode == 0, f"{arguments}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1]) if done.stdout else None
