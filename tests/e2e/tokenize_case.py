"""A test case that runs inputs/tokenize.py with small tokenizers made on the spot, and reads the token files."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import h5py
import numpy as np

import support

VENV = support.BUILD / "venv" / "tokenize"
VERSES = [json.loads(line)["text"] for line in open(support.ROOT / "inputs" / "genesis.jsonl", encoding="utf-8")]
STORIES = support.ROOT / "inputs" / "stories260k-hf"

CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
LLAMA3 = ("{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'"
          "+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}"
          "{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}")
LLAMA2 = ("{% if messages[0]['role'] == 'system' %}{% set system = '<<SYS>>\n' + messages[0]['content'].strip() + '\n<</SYS>>\n\n' %}"
          "{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}"
          "{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
          "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
          "{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}"
          "{% elif message['role'] == 'assistant' %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}{% endfor %}")
# as Qwen3's: thoughts are kept in the last answer only, and an answer without any gets an empty pair
THINKING = ("{% for message in messages %}{% set content = message['content'] %}{% if message['role'] == 'assistant' %}"
            "{% set thought = '' %}{% if '</think>' in content %}{% set thought = content.split('</think>')[0].split('<think>')[-1].strip() %}"
            "{% set content = content.split('</think>')[-1].strip() %}{% endif %}"
            "{{ '<|im_start|>assistant\n' }}{% if loop.last %}{{ '<think>\n' + thought + '\n</think>\n\n' }}{% endif %}{{ content + '<|im_end|>\n' }}"
            "{% else %}{{ '<|im_start|>' + message['role'] + '\n' + content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def load_tokenizers():
    """The library, from the venv that `make test` makes: of the same Python as this one, behind its own modules."""
    if not (support.BUILD / "venv" / "tokenize.stamp").exists():
        raise unittest.SkipTest(f"{VENV} is not there: PyPI could not be reached, or `make {VENV}.stamp` was not called")
    packages = str(next(VENV.glob("lib/python*/site-packages")))
    if packages not in sys.path:
        sys.path.append(packages)
    import tokenizers
    return tokenizers


def byte_level(tokenizers, special, vocab=400, post=None):
    """A byte-level BPE trained on the verses."""
    from tokenizers import decoders, models, pre_tokenizers, processors, trainers
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(VERSES[:300], trainers.BpeTrainer(vocab_size=vocab, special_tokens=special, show_progress=False,
                                                               initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if post:
        ids = [(token, made.token_to_id(token)) for token in special]
        made.post_processor = processors.TemplateProcessing(single=post, special_tokens=ids)
    else:
        made.post_processor = processors.ByteLevel(trim_offsets=True)  # as GPT-2 has it: reported places leave out the space
    return made


def save(made, folder, template=None, **config):
    folder.mkdir(parents=True)
    made.save(str(folder / "tokenizer.json"))
    if template:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def make_tokenizers(folder):
    """{name: folder}; chatml, llama3, llama2 (BOS in the template and from the post-processor), both_ends, thinking."""
    tokenizers = load_tokenizers()
    chatml = byte_level(tokenizers, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    save(chatml, folder / "chatml", CHATML, eos_token="<|im_end|>", bos_token="<|im_start|>")
    save(chatml, folder / "thinking", THINKING, eos_token={"content": "<|im_end|>", "special": True})
    headers = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    llama3 = byte_level(tokenizers, headers, post="<|begin_of_text|> $A")
    save(llama3, folder / "llama3", LLAMA3, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    both = byte_level(tokenizers, ["<s>", "</s>"], post="<s> $A </s>")
    save(both, folder / "both_ends", LLAMA2, bos_token="<s>", eos_token="</s>")
    save(tokenizers.Tokenizer.from_file(str(STORIES / "tokenizer.json")), folder / "llama2", LLAMA2, bos_token="<s>", eos_token="</s>")
    return {path.name: path for path in folder.iterdir()}


class TokenizeCase(unittest.TestCase):
    environment = None  # of tokenize.py: this one

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.tokenizers = make_tokenizers(pathlib.Path(folder.name) / "models")
        cls.tokenizers["stories"] = STORIES

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.out = self.dir / "out.h5"

    def write(self, content, name="in.jsonl"):
        """Records, or bytes, to an input file."""
        path = self.dir / name
        path.write_bytes(content if isinstance(content, bytes) else "".join(json.dumps(record) + "\n" for record in content).encode())
        return path

    def start(self, *arguments, expect=0):
        """Runs tokenize.py; what it wrote on (stdout, stderr)."""
        command = [VENV / "bin/python", support.ROOT / "inputs/tokenize.py", *arguments]
        done = subprocess.run(list(map(str, command)), cwd=self.dir, capture_output=True, text=True, timeout=120,
                              env=self.environment)
        told = f"exit {done.returncode}, expected {expect}\n{done.stdout}\n{done.stderr}"
        self.assertEqual(done.returncode, expect, told)
        self.assertNotIn("Traceback", done.stderr)
        return done.stdout, done.stderr

    def tokenize(self, content, model, *more, expect=0, name="in.jsonl"):
        path = content if isinstance(content, pathlib.Path) else self.write(content, name)
        return self.start("--tokenizer", self.tokenizers[model], "--from", path, "--to", self.out, *more, expect=expect)

    def documents(self, group="train"):
        """[(ids, mask)] of the token file; a mask of ones where it has none."""
        with h5py.File(self.out) as file:
            tokens, offsets = file[f"{group}/tokens"][:], file[f"{group}/doc_offsets"][:]
            mask = file[f"{group}/loss_mask"][:] if "loss_mask" in file[group] else np.ones(len(tokens), "u1")
        pairs = zip(offsets[:-1].astype(int), offsets[1:].astype(int))
        return [(tokens[a:b].tolist(), mask[a:b].tolist()) for a, b in pairs]

    def decode(self, ids, model):
        import tokenizers
        return tokenizers.Tokenizer.from_file(str(self.tokenizers[model] / "tokenizer.json")).decode(ids, skip_special_tokens=False)

    def targets(self, document, model):
        """The texts of a document's unbroken runs of targets."""
        ids, mask = document
        edges = np.flatnonzero(np.diff([0, *mask, 0]))
        return [self.decode(ids[a:b], model) for a, b in zip(edges[::2], edges[1::2])]

    def encoded(self, record, model, *more):
        """One record's (whole text, texts of its targets)."""
        self.tokenize([record], model, *more)
        document, = self.documents()
        return self.decode(document[0], model), self.targets(document, model)
