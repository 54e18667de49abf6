"""The results as text."""


def part_line(name, result):
    state = result["state"]
    told = result.get("error") or result["data"].get("skipped") or one_line(result["data"])
    return f"{name:<12} {state:<8} {result['seconds']:6.1f} s   {told}"


def one_line(data):
    if "model" in data:
        return ""
    plain = {key: value for key, value in data.items() if isinstance(value, (int, float, str)) and value != ""}
    return ", ".join(f"{key} {value:.2g}" if isinstance(value, float) else f"{key} {value}" for key, value in plain.items())


def percent(value):
    return "-" if value is None else f"{100 * value:.1f} %"


def gibibytes(value):
    return "-" if value is None else f"{value / 2**30:.2f} GiB"


def models_table(results):
    rows = [("model", "layers", "parameters", "tokens/s", "TFLOP/s", "FLOPs use", "memory", "planned", "off")]
    for r in results:
        rows.append((r["model"], str(r["layers"]), f"{r['parameters'] / 1e6:.0f}M", f"{r['tokens/s']:.0f}", f"{r['TFLOP/s']:.1f}",
                     percent(r["model FLOPs use"]), gibibytes(r["memory_bytes"]), gibibytes(r["planned_bytes"]),
                     percent(r["memory off its plan"])))
    return aligned(rows)


def kernels_table(result):
    k = result["kernels"]
    rows = [("operation", "share", "us a call", "limit", "of limit", "TFLOP/s", "GB/s")]
    for line in k["operations"]:
        s = line["seconds"]
        rows.append((line["operation"], percent(line["share"]), f"{1e6 * s:.1f}", line["limit"], f"{line['of limit']:.2f}",
                     f"{line['flops'] / s / 1e12:.1f}" if line["flops"] else "-", f"{line['bytes'] / s / 1e9:.0f}"))
    head = (f"{result['model']}, {k['rows']} tokens a micro-batch, {k['compute']}: ceilings measured beside it "
            f"{k['product_flops'] / 1e12:.0f} TFLOP/s, {k['copy_bytes_per_s'] / 1e9:.0f} GB/s; "
            f"operations alone add up to {percent(k['sum of step'])} of the step")
    return f"{head}\n{aligned(rows)}"


def aligned(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        lines.append("  ".join([first.ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(others, widths[1:]))]).rstrip())
    return "\n".join(lines)


def report(results):
    """The whole table: parts, models, kernels, goals that were missed."""
    texts = ["\n".join(part_line(name, result) for name, result in results["parts"].items())]
    models = [result["data"] for result in results["parts"].values() if "model" in result["data"]]
    if models:
        texts.append(models_table(models))
    texts += [kernels_table(model) for model in models if "kernels" in model]
    missed = [f"{model['model']}: {text}" for model in models for text in model["missed"]]
    if missed:
        texts.append("required and missed:\n" + "\n".join(missed))
    return "\n\n".join(texts)
