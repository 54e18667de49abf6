"""inputs/tokenize.py on Parquet files, written here by pyarrow: the same documents as from JSON lines, and what goes wrong."""
import json
import os
import subprocess
import unittest

import support
from tokenize_case import VENV, VERSES, TokenizeCase, load_tokenizers

# a folder of its own, so that the other tests run without pyarrow, as most users do
PACKAGES = support.BUILD / "venv" / "parquet"
WRITE = """
import json, sys, pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(json.load(sys.stdin)), sys.argv[1], **json.loads(sys.argv[2]))
"""


def setUpModule():
    if not (support.BUILD / "venv" / "parquet.stamp").exists():
        raise unittest.SkipTest(f"{PACKAGES} is not there: PyPI could not be reached, or `make {PACKAGES}.stamp` was not called")
    load_tokenizers()


class Parquet(TokenizeCase):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES)}

    def parquet(self, records, name="in.parquet", **options):
        """In a process of the venv: pyarrow wants a newer numpy than this one's."""
        subprocess.run([VENV / "bin/python", "-c", WRITE, self.dir / name, json.dumps(options)], input=json.dumps(records), text=True, check=True,
                       env=self.environment)
        return self.dir / name

    def test_the_same_documents_as_from_json_lines(self):
        turns = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am Adam – né."}]
        for name, records in {"text": [{"text": verse} for verse in VERSES[:1200]],  # more than one chunk
                              "completion": [{"prompt": "Who?", "completion": " Adam"}, {"prompt": "And?", "completion": " Eve"}],
                              "alpaca": [{"instruction": "Add.", "input": None, "output": "Two"}, {"instruction": "Add.", "input": "1", "output": "1"}],
                              "conversations": [{"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Eve"}]}],
                              "messages": [{"messages": turns}, {"messages": turns + turns}]}.items():
            with self.subTest(name=name):
                self.tokenize(records, "chatml", "--train-on", "completions" if name != "text" else "all")
                expected = self.documents()
                self.assertEqual(len(expected), len(records))
                self.tokenize(self.parquet(records, row_group_size=500), "chatml", "--train-on", "completions" if name != "text" else "all")
                self.assertEqual(self.documents(), expected)

    def test_columns_that_a_row_leaves_empty(self):
        """Files of several formats in one: the columns of the others are null."""
        self.tokenize(self.parquet([{"text": "Adam", "prompt": None, "completion": None}, {"text": None, "prompt": "Who?", "completion": " Eve"}]), "chatml")
        self.assertEqual([self.decode(ids, "chatml") for ids, _ in self.documents()], ["Adam<|im_end|>", "Who? Eve<|im_end|>"])

    def test_a_bad_row_is_named_by_its_number(self):
        path = self.parquet([{"text": "Adam"}, {"text": "Eve"}, {"text": "   "}])
        _, err = self.tokenize(path, "chatml", expect=4)
        self.assertIn("in.parquet:3: ", err)
        self.assertFalse(self.out.exists())
        self.tokenize(path, "chatml", "--skip-bad")
        self.assertEqual(len(self.documents()), 2)

    def test_files_that_are_damaged(self):
        whole = self.parquet([{"text": verse} for verse in VERSES[:50]]).read_bytes()
        for name, content in {"cut": whole[:len(whole) // 2], "empty": b"", "no footer": whole[:-8], "something else": b"Adam" * 50}.items():
            with self.subTest(name=name):
                _, err = self.tokenize(content, "chatml", name="in.parquet", expect=4)
                self.assertIn(f"{self.dir / 'in.parquet'}: ", err)
                self.assertFalse(self.out.exists())
