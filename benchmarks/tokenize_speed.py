#!/usr/bin/env python3
"""Tokenizing against the Rust tokenizer alone: inputs/tokenize.py, from JSON lines to the token file, and encode_batch on texts in memory.

    build/venv/tokenize/bin/python benchmarks/tokenize_speed.py [--documents 60000] [--processes 1]

Made of the verses of Genesis with a byte-level BPE of 4,096 tokens trained on them. The ratio is of seconds on as many cores, above 1 where
tokenize.py is the faster one; `cpu` compares processor time, which says the same on a machine that does other things as well.
"""
import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
ALONE = """
import json, resource, sys, time, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
texts = json.load(open(sys.argv[2]))
tokenizer.encode_batch(texts[:100])
start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
for i in range(0, len(texts), 2000):
    tokenizer.encode_batch(texts[i:i + 2000])
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_utime - before)
"""


def make_tokenizer(verses, folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.train_from_iterator(verses, trainers.BpeTrainer(vocab_size=4096, special_tokens=["<|im_start|>", "<|im_end|>"],
                                                         show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>", "chat_template": TEMPLATE}))


def examples(kind, verses, count):
    """(record, the text that it becomes) of one kind."""
    draw = random.Random(3)
    for _ in range(count):
        one, two = " ".join(draw.sample(verses, 3)), " ".join(draw.sample(verses, 3))
        if kind == "text":
            yield {"text": f"{one} {two}"}, f"{one} {two}"
        elif kind == "completion":
            yield {"prompt": one, "completion": f" {two}"}, f"{one} {two}"
        else:
            turns = [{"role": "user", "content": one}, {"role": "assistant", "content": two}]
            yield {"messages": turns}, "".join(f"<|im_start|>{turn['role']}\n{turn['content']}<|im_end|>\n" for turn in turns)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=60000)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    with open(ROOT / "inputs/genesis.jsonl", encoding="utf-8") as file:
        verses = [json.loads(line)["text"] for line in file]
    parallel = {"TOKENIZERS_PARALLELISM": "true" if options.processes > 1 else "false", "RAYON_NUM_THREADS": str(options.processes)}
    print(f"{'records':<12} {'alone':>8} {'ours':>8} {'ratio':>6} {'cpu':>6}")
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        make_tokenizer(verses, folder)
        for kind in ("text", "completion", "messages"):
            pairs = list(examples(kind, verses, options.documents))
            (folder / "data.jsonl").write_text("".join(json.dumps(record) + "\n" for record, _ in pairs))
            (folder / "texts.json").write_text(json.dumps([text for _, text in pairs]))
            done = subprocess.run([sys.executable, "-c", ALONE, folder / "tokenizer.json", folder / "texts.json"], check=True, text=True,
                                  stdout=subprocess.PIPE, env={**os.environ, **parallel})
            alone, alone_cpu = map(float, done.stdout.split())
            start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            subprocess.run([sys.executable, ROOT / "inputs/tokenize.py", "--tokenizer", folder, "--from", folder / "data.jsonl",
                            "--to", folder / "out.h5", "--processes", str(options.processes)], check=True, capture_output=True)
            ours, cpu = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
            print(f"{kind:<12} {alone:7.1f}s {ours:7.1f}s {alone / ours:6.2f} {alone_cpu / cpu:6.2f}", flush=True)


if __name__ == "__main__":
    main()
