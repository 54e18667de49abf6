"""The machine and the programs that are checked on it: where they lie, the environment they need, the GPU and what it can do at most.

The programs lie in build/ beside tests/, in the repository as in a bundle (tests/gpu/bundle), which has libraries and Open MPI besides.
"""
import ctypes
import glob
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("SHERD_BUILD", ROOT / "build")).resolve()
BUNDLE = ROOT / "bundle.json"

# dense bf16 FLOP/s on tensor cores and bytes/s of memory, from the data sheets; the first name that the GPU's contains
PEAKS = (("GH200", 989e12, 4.0e12), ("H200", 989e12, 4.8e12), ("H100 PCIe", 756e12, 2.0e12), ("H100 NVL", 835e12, 3.9e12),
         ("H100", 989e12, 3.35e12), ("H20", 148e12, 4.0e12), ("B200", 2250e12, 8.0e12), ("A100-SXM4-80GB", 312e12, 2.039e12),
         ("A100 80GB", 312e12, 1.935e12), ("A100", 312e12, 1.555e12), ("A30", 165e12, 0.933e12), ("L40S", 362e12, 0.864e12),
         ("L4", 121e12, 0.3e12), ("RTX 4090", 165e12, 1.008e12), ("RTX 3090", 71e12, 0.936e12))


def peaks_of(name):
    """(FLOP/s, bytes/s) of a GPU by its name; None for each where it is not in the table."""
    return next(((flops, width) for part, flops, width in PEAKS if part in name), (None, None))


def find_gpu():
    """{name, memory_bytes, count, driver} of the first GPU, or a text that says why there is none. Asks the driver itself."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no driver ({error})"
    count, device, version, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    name = ctypes.create_string_buffer(128)
    code = cuda.cuInit(0)
    if code != 0:
        return f"the driver does not start (cuInit: error {code})"
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "the driver shows no GPU"
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
    cuda.cuDriverGetVersion(ctypes.byref(version))
    return {"name": name.value.decode(), "memory_bytes": size.value, "count": count.value,
            "driver": f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"}


def folders_of(libraries):
    """Folders outside the bundle that hold shared libraries of these names: of CUDA toolkits, and of Python's packages of NVIDIA."""
    places = [*glob.glob("/usr/local/cuda*/lib64"), *glob.glob("/usr/local/cuda*/targets/x86_64-linux/lib")]
    if "CUDA_HOME" in os.environ:
        places.insert(0, os.path.join(os.environ["CUDA_HOME"], "lib64"))
    roots = {sys.prefix, *(str(pathlib.Path(path).parents[1]) for path in [shutil.which("python3")] if path)}  # of virtual environments too
    places += [p for root in sorted(roots) for p in glob.glob(f"{root}/lib/python3*/*-packages/nvidia/*/lib")]
    found = []
    for library in libraries:
        folder = next((p for p in places if os.path.exists(os.path.join(p, library))), None)
        if folder and folder not in found:
            found.append(folder)
    return found


def unpack():
    """A bundle's libraries, once."""
    archive = ROOT / "libraries.tar.xz"
    if not archive.exists() or (ROOT / "lib" / ".whole").exists():
        return
    with tarfile.open(archive) as files:
        files.extractall(ROOT)
    (ROOT / "lib" / ".whole").touch()


def environment():
    """What the programs are started with."""
    env = dict(os.environ)
    env.setdefault("OMP_NUM_THREADS", str(min(16, len(os.sched_getaffinity(0)))))
    # containers often forbid one process to read another's memory; ranks of one machine start without a shell elsewhere
    env |= {"OMPI_MCA_btl_vader_single_copy_mechanism": "none", "OMPI_MCA_plm_rsh_agent": "sh", "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if not BUNDLE.exists():
        return env
    told = json.loads(BUNDLE.read_text())
    folders = [str(ROOT / "lib"), *folders_of(told["outside"])]
    env["LD_LIBRARY_PATH"] = ":".join([*folders, *filter(None, [env.get("LD_LIBRARY_PATH")])])
    for name, place in told["environment"].items():
        env[name] = str(ROOT / place)
    env["PATH"] = f"{ROOT / 'openmpi/bin'}:{env.get('PATH', '/usr/bin:/bin')}"
    return env


class Failure(Exception):
    """A part that did not do what it should: the text says what; data: what is known all the same."""

    def __init__(self, text, data=None):
        super().__init__(text)
        self.data = data or {}


class Programs:
    """Starts programs within a part's time."""

    def __init__(self, folder, device, deadline):
        self.folder, self.device, self.deadline = pathlib.Path(folder), device, deadline
        self.env = environment()

    def path(self, name):
        return str(BUILD / name)

    def left(self):
        return max(1.0, self.deadline - time.monotonic())

    def start(self, command, log):
        return subprocess.Popen(list(map(str, command)), env=self.env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT, start_new_session=True)

    def run(self, *command, expect=(0,), seconds=None):
        """The output of a program; Failure where it ends otherwise than expected."""
        log = self.folder / f"log-{time.monotonic_ns()}"
        with open(log, "wb") as sink:
            process = self.start(command, sink)
            try:
                code = process.wait(min(self.left(), seconds or 1e9))
            except subprocess.TimeoutExpired:
                kill(process)
                code = "no end in time"
        text = log.read_text(errors="replace")
        if code not in expect:
            raise Failure(f"{pathlib.Path(str(command[0])).name} {' '.join(map(str, command[1:3]))}: ended with {code}: {last_lines(text)}")
        return text

    def sherd(self, *arguments, ranks=None, **more):
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] if ranks else []
        return self.run(*launcher, self.path("sherd"), *arguments, **more)


def scratch_folder():
    """Where gigabytes are written and read again fastest: memory, where there is enough of it; None: the temporary directory."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 8 << 30 else None
    except OSError:
        return None


def kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def last_lines(text, count=6):
    return " | ".join(line.strip() for line in text.strip().splitlines()[-count:])[-1500:]


def read_metrics(directory):
    """The whole lines of a run's metrics."""
    path = pathlib.Path(directory) / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
