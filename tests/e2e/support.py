"""What the end-to-end tests share: running the program and checking how it ends."""
import json
import os
import pathlib
import shutil
import subprocess

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
FORBIDDEN = ("terminate called", "HDF5-DIAG", "Segmentation fault", "Backtrace")


def run(*args, ranks=None, expect=0, cwd=None, seconds=300):
    """Runs sherd, under mpirun where ranks is given; fails unless it ends with the expected exit code. Returns the process with its texts."""
    command = [str(BUILD / "sherd"), *map(str, args)]
    if ranks is not None:
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "-np", str(ranks), *command]
    done = subprocess.run(command, cwd=cwd or ROOT, capture_output=True, text=True, timeout=seconds)
    told = f"{' '.join(command)}\nexit {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == expect, told
    for word in FORBIDDEN:
        assert word not in done.stdout + done.stderr, told
    return done


FIXTURES = ROOT / "tests" / "fixtures"
NUMPY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1",
               "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "?", "F8_E4M3": "u1", "F8_E5M2": "u1"}


def read_header(path):
    """The JSON header of a safetensors file, and where its data begin."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return json.loads(file.read(length)), 8 + length


def read_safetensors(path):
    """{name: (dtype as in the header, array)}; bfloat16 and fp8 come as bits."""
    header, start = read_header(path)
    header.pop("__metadata__", None)
    data = pathlib.Path(path).read_bytes()[start:]
    return {name: (entry["dtype"],
                   np.frombuffer(data[slice(*entry["data_offsets"])], NUMPY_TYPES[entry["dtype"]]).reshape(entry["shape"]))
            for name, entry in header.items()}


def write_safetensors(path, tensors, metadata={"format": "pt"}):
    """Writes {name: (dtype, array of that dtype or its bits)}; metadata None leaves the key out."""
    header, data = ({} if metadata is None else {"__metadata__": metadata}), b""
    for name, (dtype, array) in tensors.items():
        piece = np.ascontiguousarray(array, NUMPY_TYPES[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def read_folder(folder):
    """All tensors of a Hugging Face folder, by its index where it has one."""
    index = pathlib.Path(folder) / "model.safetensors.index.json"
    names = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.exists() else ["model.safetensors"]
    return {name: value for file in names for name, value in read_safetensors(pathlib.Path(folder) / file).items()}


def bfloat16_bits(array):
    """float32 to bfloat16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4").astype("u8")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def copy_fixture(name, target):
    """A writable copy of a fixture's Hugging Face folder."""
    return pathlib.Path(shutil.copytree(FIXTURES / name / "hf", target, copy_function=shutil.copyfile))
