#!/usr/bin/env python3
"""What PyTorch and transformers do for the tests, run by a Python that has them (torch_python.py): it shares no code with the others.

    torch_side.py losses TOKENS.npz HF/ [TOKENS.npz HF/ ...]     one JSON object: by folder, `loss`, the mean over the targets, and `odd`,
                                                                 the tensors that did not fit
    torch_side.py tokens HF/ FILE.jsonl COUNT OUT.npz     ids of the first COUNT texts, each ending in the tokenizer's end token

TOKENS.npz holds tokens, doc_offsets and loss_mask as token files do. Losses are computed in float64.
"""
import json
import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def mean_loss(model, file):
    tokens, offsets, mask = file["tokens"].astype(np.int64), file["doc_offsets"].astype(np.int64), file["loss_mask"].astype(bool)
    total, targets = 0.0, 0
    for begin, end in zip(offsets[:-1], offsets[1:]):
        ids = torch.tensor(tokens[begin:end])
        wanted = torch.tensor(mask[begin + 1:end])
        with torch.no_grad():
            logits = model(ids[None], use_cache=False).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, ids[1:], reduction="none")
        total += losses[wanted].sum().item()
        targets += int(wanted.sum())
    return total / targets


def losses(*pairs):
    found = {}
    for tokens, folder in zip(pairs[::2], pairs[1::2]):
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager", output_loading_info=True)
        odd = [f"{kind}: {sorted(map(str, names))}" for kind, names in info.items() if names]
        found[folder] = {"loss": mean_loss(model, np.load(tokens)), "odd": odd}
    print(json.dumps(found))


def tokens(folder, texts, count, out):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(texts, encoding="utf-8") as file:
        documents = [tokenizer(json.loads(line)["text"]).input_ids + [tokenizer.eos_token_id] for line, _ in zip(file, range(int(count)))]
    np.savez(out, tokens=np.concatenate(documents), doc_offsets=np.cumsum([0, *map(len, documents)]))


if __name__ == "__main__":
    {"losses": losses, "tokens": tokens}[sys.argv[1]](*sys.argv[2:])
