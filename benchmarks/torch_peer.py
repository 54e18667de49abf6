#!/usr/bin/env python3
"""The work of benchmarks/run.py in PyTorch: one line of JSON with the seconds of each step and the peak resident bytes of a rank.

    OMP_NUM_THREADS=2 python torch_peer.py --model small --compute fp32
    OMP_NUM_THREADS=1 python -m torch.distributed.run --nproc-per-node 2 torch_peer.py ...

Needs torch and transformers. Random weights and tokens, documents of one length, AdamW (fused), clipping; gradients are summed over ranks
once a step (DDP), or as FSDP2 does (--mode full_shard, shard_grad_op). bf16 is autocast or FSDP2's mixed precision over float32 masters.
"""
import argparse
import contextlib
import json
import os
import resource
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

MODELS = {  # as build/tools/make_random_model makes them
    "tiny": dict(vocab_size=4096, hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
                 num_key_value_heads=6, tie_word_embeddings=True),
    "small": dict(vocab_size=8192, hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8,
                  num_key_value_heads=4, tie_word_embeddings=False),
    "smollm2": dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
                    num_key_value_heads=3, tie_word_embeddings=True),
}


def one_step(model, optimizer, micro_batches, bf16):
    """Forward and backward over the micro-batches, the sum over ranks behind the last one, then the update."""
    for number, ids in enumerate(micro_batches, 1):
        last = number == len(micro_batches)
        sharded = hasattr(model, "set_requires_gradient_sync")
        if sharded:
            model.set_requires_gradient_sync(last)
        silent = model.no_sync() if hasattr(model, "no_sync") and not last else contextlib.nullcontext()
        with silent:
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16 and not sharded):
                loss = model(ids, labels=ids, use_cache=False).loss / len(micro_batches)
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def shard(model, mode, world, bf16):
    """FSDP2 around each block and the whole; shard_grad_op keeps weights between forward and backward pass."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    options = dict(mesh=init_device_mesh("cpu", (world,)), reshard_after_forward=mode == "full_shard",
                   mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32) if bf16 else MixedPrecisionPolicy())
    for layer in model.model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="small")
    parser.add_argument("--compute", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=4096, help="of one step over all ranks")
    parser.add_argument("--micro", type=int, default=1024, help="tokens of one micro-batch of one rank")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--mode", choices=("ddp", "full_shard", "shard_grad_op"), default="ddp", help="with several ranks")
    parser.add_argument("--compile", action="store_true")
    arguments = parser.parse_args()

    world = int(os.environ.get("WORLD_SIZE", 1))
    if world > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(0)
    config = LlamaConfig(**MODELS[arguments.model], max_position_embeddings=2048, attn_implementation="sdpa")
    model = LlamaForCausalLM(config)
    if world > 1 and arguments.mode != "ddp":
        shard(model, arguments.mode, world, arguments.compute == "bf16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    if world > 1 and arguments.mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    if arguments.compile:
        model = torch.compile(model)
    rows, count = arguments.micro // arguments.length, arguments.tokens // (arguments.micro * world)
    seconds = []
    for _ in range(arguments.steps):
        micro_batches = [torch.randint(0, config.vocab_size, (rows, arguments.length)) for _ in range(count)]
        if world > 1:
            dist.barrier()
        start = time.perf_counter()
        one_step(model, optimizer, micro_batches, arguments.compute == "bf16")
        if world > 1:
            dist.barrier()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if int(os.environ.get("RANK", 0)) == 0:
        print(json.dumps({"torch": torch.__version__, "seconds": seconds, "memory_bytes": peak}))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
