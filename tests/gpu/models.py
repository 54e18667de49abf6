"""How fast, and in how much memory? Random models of known shapes train for a few steps; then each operation of such a step is measured
alone."""
import json
import shutil
import statistics
import time
from dataclasses import dataclass

import machine
from machine import Failure, read_metrics

GOALS = {"model FLOPs use of llama8b": 0.45, "fused kernels": 0.8, "memory off its plan": 0.03}
# kernels that memory limits, and that are the program's own; what is over before memory is busy is not judged
FUSED_BYTES = 64 << 20
PRODUCT = ("linear_", "attention_", "copy", "product", "zero")


@dataclass(frozen=True)
class Model:
    """Sizes as in src/tools/model_shapes.hpp; tokens of a document, of a micro-batch, of a step; steps, of which two do not count."""
    name: str
    vocabulary: int
    hidden: int
    intermediate: int
    kv: int
    layers: int
    tied: bool
    length: int
    micro: int
    tokens: int
    steps: int

    @property
    def block(self):
        return 2 * self.hidden**2 + 2 * self.kv * self.hidden + 3 * self.intermediate * self.hidden + 2 * self.hidden

    @property
    def multiplied(self):
        """Parameters that every token is multiplied with: an embedding that is only looked up is none."""
        return self.vocabulary * self.hidden + self.layers * self.block + self.hidden

    @property
    def parameters(self):
        return self.multiplied + (0 if self.tied else self.vocabulary * self.hidden)

    @property
    def flops(self):
        """Of a token: 6 a parameter, and attention's four products of the scores that causality leaves, twice as much backward."""
        return 6 * self.multiplied + 6 * self.layers * self.hidden * (self.length + 1)

    def deep(self, layers):
        return Model(**{**self.__dict__, "layers": layers})

    def fitting(self, memory):
        """About as many layers as fit: fp32 masters, moments and gradients, bf16 weights, and what a layer keeps of a micro-batch
        (src/model/decoder_memory.cpp)."""
        activations = self.micro * 2 * (4 * self.hidden + 2 * self.kv + 2 * self.intermediate)
        fixed = 18 * (self.parameters - self.layers * self.block) + (2 << 30)
        return max(1, min(self.layers, int((memory - fixed) / (18 * self.block + activations))))


MODELS = (Model("smollm2", 49152, 576, 1536, 192, 30, True, 2048, 16384, 131072, 12),
          Model("llama1b", 128256, 2048, 8192, 512, 16, True, 4096, 8192, 65536, 10),
          Model("llama8b", 128256, 4096, 14336, 1024, 32, False, 4096, 8192, 32768, 7))
TINY = (Model("tiny", 4096, 288, 768, 288, 2, True, 64, 128, 512, 4),)


def train_some_steps(programs, model, weights, tokens, compute):
    """Steps of a run that is ended as soon as it has taken them: at its own end it would write a checkpoint of 12 bytes a parameter."""
    run = programs.folder / f"{model.name}-run"
    shutil.rmtree(run, ignore_errors=True)
    keys = {"model.weights": weights, "data.tokens": tokens, "batch.tokens": model.tokens, "batch.micro_tokens": model.micro,
            "run.steps": 1000, "run.directory": run, "precision.compute": compute, "sharding.strategy": "no_shard",
            "device.kind": programs.device, "checkpoint.resume": "never", "optimizer.learning_rate": 1e-5}
    log = programs.folder / f"{model.name}.log"
    with open(log, "wb") as sink:
        started = time.monotonic()
        process = programs.start([programs.path("sherd"), "train", *(f"--{key}={value}" for key, value in keys.items())], sink)
        try:
            while process.poll() is None and time.monotonic() < programs.deadline and len(steps_of(run)) < model.steps:
                time.sleep(0.05)
        finally:
            code = process.poll()
            machine.kill(process)
    if len(steps_of(run)) < model.steps:
        why = f"ended with {code}" if code is not None else "did not get there in time"
        raise Failure(f"{len(steps_of(run))} of {model.steps} steps, {time.monotonic() - started:.0f} s; {why}: "
                      f"{machine.last_lines(log.read_text(errors='replace'))}")
    lines = read_metrics(run)
    shutil.rmtree(run, ignore_errors=True)
    return lines


def steps_of(run):
    return [line for line in read_metrics(run) if line["event"] == "step"]


def train_deepest(programs, model, options):
    """(model as deep as memory lets it be, lines of its metrics)"""
    compute = "bf16"
    tokens, weights = programs.folder / f"{model.name}-tokens.h5", programs.folder / f"{model.name}.h5"
    documents = (model.steps + 2) * model.tokens // model.length
    programs.run(programs.path("tools/make_random_tokens"), tokens, model.vocabulary, documents, model.length, 1)
    layers = model.fitting(options.memory) if options.memory else model.layers
    for attempt in range(4):
        deep = model.deep(max(1, layers - attempt))
        weights.unlink(missing_ok=True)
        programs.run(programs.path("tools/make_random_model"), model.name, weights, f"layers={deep.layers}", "alike")
        try:
            return deep, train_some_steps(programs, deep, weights, tokens, compute)
        except Failure as failure:
            if "memory" not in str(failure) or attempt == 3 or deep.layers == 1:
                raise
        finally:
            weights.unlink(missing_ok=True)
    raise AssertionError("not reached")


def summary(model, lines, options):
    """Figures of the steps behind the first two."""
    start = next(line for line in lines if line["event"] == "start")
    steps = [line for line in lines if line["event"] == "step"][:model.steps]
    seconds = statistics.median(line["step_s"] for line in steps[2:])
    result = {"model": model.name, "layers": model.layers, "parameters": model.parameters, "tokens a step": model.tokens,
              "tokens a micro-batch": model.micro, "document": model.length,
              "tokens/s": statistics.median(line["tokens_per_s"] for line in steps[2:]), "step_s": seconds,
              "all step_s": [line["step_s"] for line in steps], "losses": [line["loss"] for line in steps],
              "flops of a token": model.flops, "memory_bytes": max(line["memory_bytes"] for line in steps),
              "planned_bytes": start.get("planned_bytes")}
    result["TFLOP/s"] = result["tokens/s"] * model.flops / 1e12
    result["model FLOPs use"] = result["tokens/s"] * model.flops / options.peak_flops if options.peak_flops else None
    result["memory off its plan"] = result["memory_bytes"] / start["planned_bytes"] - 1 if start.get("planned_bytes") else None
    return result


def measure_operations(programs, model, options, step_seconds):
    """Each operation's share of the step and of the time that its limit would take."""
    text = programs.run(programs.path("tools/bench_step"), programs.device, model.name, model.micro, model.length, f"layers={model.layers}")
    head, *operations = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    flops, width = options.peak_flops or head["product_flops"], options.peak_bytes or head["copy_bytes_per_s"]
    for line in operations:
        calls = line["calls"] * (1 if line["per"] == "step" else model.tokens / model.micro)
        line["in a step"] = calls * line["seconds"]
        by_products, by_memory = line["flops"] / flops, line["bytes"] / width
        line["limit"] = "products" if by_products > by_memory else "memory"
        line["of limit"] = max(by_products, by_memory) / line["seconds"]
        line["of measured copy"] = line["bytes"] / head["copy_bytes_per_s"] / line["seconds"]
    total = sum(line["in a step"] for line in operations)
    for line in operations:
        line["share"] = line["in a step"] / total
    operations.sort(key=lambda line: -line["share"])
    return {**head, "operations": operations, "sum_s": total, "sum of step": total / step_seconds}


def missed_goals(result, options):
    """What the requirements for this GPU ask for and these figures do not show."""
    missed = []
    use, off = result["model FLOPs use"], result["memory off its plan"]
    if result["model"] == "llama8b" and use is not None and use < GOALS["model FLOPs use of llama8b"]:
        missed.append(f"model FLOPs use {use:.3f}, required {GOALS['model FLOPs use of llama8b']}")
    if off is not None and abs(off) > GOALS["memory off its plan"]:
        missed.append(f"memory {100 * off:+.1f} % off its plan, required 3 %")
    for line in result.get("kernels", {}).get("operations", []):
        if not line["operation"].startswith(PRODUCT) and line["bytes"] >= FUSED_BYTES and line["of limit"] < GOALS["fused kernels"]:
            missed.append(f"{line['operation']} at {line['of limit']:.2f} of memory bandwidth, required {GOALS['fused kernels']}")
    return missed


def check_model(model):
    def part(programs, options):
        deep, lines = train_deepest(programs, model, options)
        result = summary(deep, lines, options)
        if any(loss is None for loss in result["losses"]):
            raise Failure(f"losses are not finite: {result['losses']}")
        try:
            result["kernels"] = measure_operations(programs, deep, options, result["step_s"])
        except Failure as failure:
            raise Failure(str(failure), result) from failure
        finally:
            result["missed"] = missed_goals(result, options) if options.judged else []
        return result
    return part
