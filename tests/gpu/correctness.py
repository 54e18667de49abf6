"""Does it compute the right thing? Kernels against plain loops, small models and a training curve against float64 PyTorch, two ranks on one
GPU."""
import concurrent.futures
import json
import pathlib

from machine import ROOT, Failure, read_metrics

FIXTURES = ROOT / "tests" / "fixtures"
LOSS, NORM = 3e-6, 2e-5  # relative, of fp32 runs: as on CPUs (tests/e2e)
LOSS_BF16 = 1.5e-2


def read_safetensors(path):
    """{name: (header entry, bytes)}"""
    data = pathlib.Path(path).read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    return {name: (entry, data[8 + length:][slice(*entry["data_offsets"])]) for name, entry in header.items()}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, (entry, piece) in tensors.items():
        header[name] = {**entry, "data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(len(text).to_bytes(8, "little") + text + data)


def fixture_tokens(programs, name):
    """The fixture's documents as a token file."""
    made = programs.folder / f"{name}-tokens.h5"
    if not made.exists():
        stored = read_safetensors(FIXTURES / name / "reference.safetensors")
        plain = programs.folder / f"{name}-tokens.safetensors"
        write_safetensors(plain, {f"train/{key}": stored[key] for key in ("tokens", "doc_offsets", "loss_mask")})
        vocabulary = json.loads((FIXTURES / name / "hf" / "config.json").read_text())["vocab_size"]
        programs.run(programs.path("tools/make_tokens"), plain, made, vocabulary)
    return made


def train_fixture(programs, name, compute, ranks=None, **keys):
    """Trains as PyTorch did; the lines of its steps."""
    numbers = json.loads((FIXTURES / name / "reference.json").read_text())
    run = programs.folder / f"{name}-{compute}-{ranks or 'alone'}"
    documents = read_safetensors(FIXTURES / name / "reference.safetensors")["doc_offsets"][0]["shape"][0] - 1
    values = {"model.weights": FIXTURES / name / "hf", "data.tokens": fixture_tokens(programs, name), "data.shuffle": "false",
              "run.steps": 3, "run.directory": run, "batch.sequences": documents, "optimizer.schedule": "constant",
              "optimizer.learning_rate": numbers["learning_rate"], "optimizer.beta1": numbers["betas"][0],
              "optimizer.beta2": numbers["betas"][1], "optimizer.epsilon": numbers["eps"],
              "optimizer.weight_decay": numbers["weight_decay"], "optimizer.clip_norm": numbers["clip_norm"], "precision.compute": compute,
              "device.kind": programs.device, "device.threads": 2, "sharding.strategy": "no_shard", **keys}
    programs.sherd("train", *(f"--{key}={value}" for key, value in values.items()), ranks=ranks)
    return numbers, [line for line in read_metrics(run) if line["event"] == "step"]


def farthest(found, expected):
    if len(found) != len(expected):
        raise Failure(f"{len(found)} steps, expected {len(expected)}")
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected))


def compare_fixture(programs, name, compute, **more):
    """(worst relative error of losses, of gradient norms) over the steps."""
    numbers, steps = train_fixture(programs, name, compute, **more)
    return tuple(farthest([line[key] for line in steps], numbers[key]) for key in ("loss", "grad_norm"))


def kernels(programs, options):
    """The tests of tests/emulation that the device can run, on the device."""
    report = programs.folder / "kernels.json"
    if programs.device != "cuda":
        return {"skipped": "they need a GPU"}
    said = programs.run(programs.path("tests/device"), "--gtest_brief=1", f"--gtest_output=json:{report}", expect=(0, 1))
    told = json.loads(report.read_text())
    failed = [f"{suite['name']}.{test['name']}: {test['failures'][0]['failure'][:400]}"
              for suite in told["testsuites"] for test in suite["testsuite"] if test.get("failures")]
    result = {"tests": told["tests"], "failed": failed}
    if failed or told["tests"] < 20:
        raise Failure(f"{len(failed)} of {told['tests']} tests failed: {'; '.join(failed[:8]) or said[-300:]}")
    return result


def fixtures(programs, options):
    """Every model family in fp32, some in bf16; a few at a time, because most of each run is its start."""
    names = sorted(json.loads((FIXTURES / "cases.json").read_text()))[:options.most]
    jobs = [(name, "fp32") for name in names] + [(name, "bf16") for name in names[::3]]
    for name in names:
        fixture_tokens(programs, name)
    with concurrent.futures.ThreadPoolExecutor(options.parallel) as pool:
        found = list(pool.map(lambda job: attempt(compare_fixture, programs, *job), jobs))
    result = {f"{name} {compute}": errors for (name, compute), errors in zip(jobs, found)}
    bad = []
    for job, errors in result.items():
        losses, norms = (LOSS, NORM) if job.endswith("fp32") else (LOSS_BF16, 1e9)
        if isinstance(errors, str):
            bad.append(f"{job}: {errors}")
        elif errors[0] > losses or errors[1] > norms:
            bad.append(f"{job}: loss off by {errors[0]:.1e}, norm by {errors[1]:.1e}")
    if bad:
        raise Failure(f"{len(bad)} of {len(jobs)} runs: {'; '.join(bad)}", {"runs by name": result})
    return {"runs": len(jobs), "worst loss fp32": max(e[0] for j, e in result.items() if j.endswith("fp32")), "runs by name": result}


def attempt(function, *arguments):
    """Its result, or the text of its failure."""
    try:
        return function(*arguments)
    except Failure as failure:
        return str(failure)


def story_keys(programs, run):
    settings = json.loads((FIXTURES / "stories_genesis" / "curve.json").read_text())["settings"]
    tokens = programs.folder / "genesis.h5"
    if not tokens.exists():
        programs.run(programs.path("tools/make_tokens"), FIXTURES / "stories_genesis" / "tokens.safetensors", tokens, 512)
    return {"model.weights": ROOT / "inputs" / "stories260k-hf", "data.tokens": tokens, "data.shuffle": "false",
            "run.steps": settings["steps"], "run.directory": run, "batch.sequences": settings["sequences"],
            "optimizer.learning_rate": settings["learning_rate"],
            "optimizer.warmup_steps": settings["warmup_steps"], "optimizer.min_lr_ratio": settings["min_lr_ratio"],
            "optimizer.schedule": settings["schedule"], "optimizer.beta1": settings["betas"][0], "optimizer.beta2": settings["betas"][1],
            "optimizer.epsilon": settings["epsilon"], "optimizer.weight_decay": settings["weight_decay"],
            "optimizer.clip_norm": settings["clip_norm"], "precision.compute": "fp32", "device.kind": programs.device}


def on_curve(programs, keys, ranks=None):
    """Trains the demo and compares each step, and the validations, with float64 PyTorch."""
    expected = json.loads((FIXTURES / "stories_genesis" / "curve.json").read_text())
    programs.sherd("train", *(f"--{key}={value}" for key, value in keys.items()), ranks=ranks)
    lines = read_metrics(keys["run.directory"])
    steps = [line for line in lines if line["event"] == "step"]
    wanted = expected["steps"][:keys.get("run.stop_step")]
    loss = farthest([line["loss"] for line in steps], [line["loss"] for line in wanted])
    norm = farthest([line["grad_norm"] for line in steps], [line["grad_norm"] for line in wanted])
    result = {"steps": len(steps), "loss off by": loss, "norm off by": norm, "last loss": steps[-1]["loss"]}
    if "run.stop_step" not in keys:
        validations = [line["loss"] for line in lines if line["event"] == "validation"]
        result["validation off by"] = farthest(validations, [expected["validation_before"], expected["validation_after"]])
    if loss > LOSS or norm > NORM or result.get("validation off by", 0) > LOSS:
        raise Failure(f"not on the curve: {result}")
    return result


def curve(programs, options):
    """The demo: 40 steps of the story model on Genesis."""
    return on_curve(programs, story_keys(programs, programs.folder / "curve"))


def two_ranks(programs, options):
    """Two ranks share one GPU over staged MPI: every strategy's first steps of a fixture, and of the demo."""
    result = {}
    for strategy in ("no_shard", "shard_grad_op", "full_shard")[:options.most]:
        keys = {**story_keys(programs, programs.folder / f"two-{strategy}"), "run.stop_step": 5, "sharding.strategy": strategy,
                "communication.backend": "mpi", "device.threads": 2}
        result[strategy] = on_curve(programs, keys, ranks=2)["loss off by"]
    errors = compare_fixture(programs, "qwen3", "fp32", ranks=2, **{"sharding.strategy": "full_shard", "communication.backend": "mpi"})
    if errors[0] > LOSS or errors[1] > NORM:
        raise Failure(f"qwen3 with two ranks: loss off by {errors[0]:.1e}, norm by {errors[1]:.1e}")
    return {"ranks": 2, "loss off by": {**result, "qwen3": errors[0]}}
