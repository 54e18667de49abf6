#!/usr/bin/env python3
"""Asks a chat model in a Hugging Face folder a question, with transformers: ask.py FOLDER/ "QUESTION". Always the likeliest token."""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

folder, question = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False)
ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids
with torch.no_grad():
    answer = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=60, do_sample=False)
print(f"question  {question}\nanswer    {tokenizer.decode(answer[0, ids.shape[1]:], skip_special_tokens=True).strip()}")
