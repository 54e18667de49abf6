"""inputs/tokenize.py where something is wrong: each fault with its place and a reason, nothing dropped in silence, nothing left behind."""
import gzip
import json
import re
import signal
import subprocess
import time
import unittest

import support
from tokenize_case import VENV, VERSES, TokenizeCase

QUESTION = {"role": "user", "content": "Who?"}
ANSWER = {"role": "assistant", "content": "Adam"}


def lines(*records):
    return b"".join((record if isinstance(record, bytes) else json.dumps(record).encode()) + b"\n" for record in records)


GOOD = {"text": "In the beginning"}


class Windows(TokenizeCase):
    """JSON lines as Windows saves them: byte order mark, carriage returns, blank lines, no line end at the end."""

    RECORDS = [{"text": "In the beginning"}, None, {"text": "God created"}, {"text": ""}, {"text": "  \n"}, None, {"text": None}, {"text": 7},
               {"text": "the heaven", "source": "Genesis"}, {"text": "and the earth\r\nbelow"}, {"text": "And"}, {"text": "darkness"}]

    def test_twelve_lines(self):
        body = "\r\n".join("" if record is None else json.dumps(record) for record in self.RECORDS)
        out, err = self.tokenize(b"\xef\xbb\xbf" + body.encode(), "chatml", "--skip-bad")
        found = self.documents()
        self.tokenize([record for place, record in enumerate(self.RECORDS) if place in (0, 2, 8, 9, 10, 11)], "chatml")
        self.assertEqual(found, self.documents())
        for number, reason in ((4, "empty: text"), (5, "empty: text"), (7, "missing or of another type: text should be a string, found null"),
                               (8, "missing or of another type: text should be a string, found a number")):
            self.assertIn(f"in.jsonl:{number}: {reason}\n", err)
        # 10 records and 2 blank lines are the 12 lines; 4 refused and 6 documents are the 10 records
        self.assertRegex(out, r"(?m)^records read +10, and 2 blank lines$")
        self.assertRegex(out, r"(?m)^refused +4\n  empty +2\n  missing or of another type +2\ndocuments +6: ")

    def test_the_first_bad_line_ends_the_run(self):
        _, err = self.tokenize(lines(GOOD, b"", {"text": ""}, {"text": None}), "chatml", expect=4)
        self.assertRegex(err, r"tokenize: error: \S*in.jsonl:3: empty: text \(--skip-bad")
        self.assertEqual([path.name for path in self.dir.iterdir()], ["in.jsonl"])


class Conversations(TokenizeCase):
    """ShareGPT as it is found: encoded whole, or refused with its number and the reason."""

    def test_nine_faults_and_a_good_one(self):
        def talk(*turns):
            return {"conversations": [{"from": speaker, "value": text} for speaker, text in turns]}
        human, gpt = ("human", "Who?"), ("gpt", "Adam")
        records = [talk(gpt, human, ("gpt", "Eve")),                       # 1 the assistant begins: encoded whole
                   talk(human, human, gpt),                                # 2 one speaker twice in a row: encoded whole
                   talk(human, gpt, ("gpt", "Eve")),                       # 3 the assistant twice: both are learned
                   talk(("system", "Be brief."), human, gpt),              # 4 a system turn: read, never learned
                   talk(human, ("tool", "42"), gpt),                       # 5 a tool's turn: read, never learned
                   talk(human, ("narrator", "Then"), gpt),                 # 6 unknown speaker
                   talk(human, ("gpt", "")),                               # 7 empty answer
                   talk(human, ("system", "No answer follows.")),          # 8 nothing to learn
                   {"conversations": [{"from": "human", "value": "Who?"}, {"from": "gpt"}]},  # 9 no text at all
                   talk(human, gpt, human, gpt, human, gpt, human)]        # 10 good, seven turns, the last one unanswered
        out, err = self.tokenize(records, "chatml", "--skip-bad", "--refused", self.dir / "refused.jsonl")
        learned = [self.targets(document, "chatml") for document in self.documents()]
        adam, eve = "Adam<|im_end|>", "Eve<|im_end|>"
        self.assertEqual(learned, [[adam, eve], [adam], [adam, eve], [adam], [adam], [adam] * 3])
        texts = [self.decode(ids, "chatml") for ids, _ in self.documents()]
        self.assertIn("<|im_start|>system\nBe brief.<|im_end|>\n", texts[3])
        self.assertIn("<|im_start|>tool\n42<|im_end|>\n", texts[4])
        self.assertEqual([text.count("<|im_start|>") for text in texts], [3, 3, 3, 3, 3, 7])
        refused = [json.loads(line) for line in (self.dir / "refused.jsonl").read_text().splitlines()]
        self.assertEqual([(entry["line"], entry["reason"]) for entry in refused],
                         [(6, "unknown speaker"), (7, "empty"), (8, "no assistant turn"), (9, "missing or of another type")])
        for entry in refused:
            self.assertIn(f"in.jsonl:{entry['line']}: {entry['reason']}", err)
        self.assertRegex(out, r"(?m)^records read +10$")
        self.assertRegex(out, r"(?m)^refused +4\n")
        self.assertRegex(out, r"(?m)^documents +6: ")

    def test_what_a_template_refuses_or_drops(self):
        records = [{"messages": [QUESTION, QUESTION, ANSWER]}, {"messages": [QUESTION, {"role": "tool", "content": "42"}, ANSWER]},
                   {"messages": [QUESTION, {"role": "tool", "content": "42"}, QUESTION, ANSWER]},
                   {"messages": [ANSWER, QUESTION]}, {"messages": [QUESTION, ANSWER]}]
        out, err = self.tokenize(records, "llama2", "--skip-bad")
        self.assertIn("in.jsonl:1: the chat template refuses it: Conversation roles must alternate", err)
        self.assertIn("in.jsonl:3: the chat template rewrites or drops a turn: it drops turn 2 (tool)", err)
        for number in (2, 4):
            self.assertIn(f"in.jsonl:{number}: the chat template", err)
        self.assertRegex(out, r"documents +1: ")


MALFORMED = [
    ("cut line", lines(GOOD)[:-4], r":1: not JSON: Unterminated string"),
    ("two records on a line", b'{"text": "a"} {"text": "b"}\n', r":1: not JSON: Extra data at column 15"),
    ("single quotes", b"{'text': 'a'}\n", r":1: not JSON: .* at column 2"),
    ("a list on a line", lines(GOOD, [1, 2]), r":2: not a JSON object: found a list"),
    ("a string on a line", lines("text"), r":1: not a JSON object: found a string"),
    ("a key twice", b'{"text": "a", "text": "b"}\n', r":1: a key comes twice: 'text'"),
    ("unknown keys", lines({"texte": "a", "id": 3}), r":1: no known keys: found 'texte', 'id'; expected text, or prompt"),
    ("an empty object", lines({}), r":1: no known keys: found none"),
    ("prompt alone", lines({"prompt": "a"}), r":1: missing or of another type: completion should be a string, found nothing"),
    ("empty completion", lines({"prompt": "a", "completion": ""}), r":1: empty: completion"),
    ("a list as text", lines({"text": ["a"]}), r":1: .*text should be a string, found a list"),
    ("empty output", lines({"instruction": "a", "output": " "}), r":1: empty: output"),
    ("no turns", lines({"messages": []}), r":1: empty: messages"),
    ("turns are text", lines({"messages": "user: a"}), r":1: .*messages should be a list, found a string"),
    ("a turn is text", lines({"messages": ["a"]}), r":1: .*turn 1 of messages should be an object, found a string"),
    ("unknown role", lines({"messages": [QUESTION, {"role": "asistant", "content": "a"}]}),
     r":1: unknown role: turn 2: 'asistant'; known are system"),
    ("no content", lines({"messages": [QUESTION, {"role": "assistant", "content": None}]}),
     r":1: .*turn 2 \(assistant\): content should be a string, found null"),
    ("a picture", lines({"messages": [{"role": "user", "content": [{"type": "image"}]}, ANSWER]}), r":1: a turn holds more than text: turn 1"),
    ("a tool call", lines({"messages": [QUESTION, {**ANSWER, "tool_calls": [{"id": 1}]}]}),
     r":1: a turn holds more than text: turn 2 \(assistant\): tool_calls"),
    ("not UTF-8", lines(GOOD) + b'{"text": "caf\xe9"}\n', r":2: not UTF-8: .* at byte 14"),
    ("half a surrogate pair", b'{"text": "a\\ud83d"}\n', r":1: half a surrogate pair: text, character 2"),
    ("nested without end", b'{"text": ' + b"[" * 200000 + b"\n", r":1: not JSON: nested too deeply"),
    ("a noncharacter", lines({"messages": [{"role": "user", "content": "\ufdd0"}, ANSWER]}), r":1: a noncharacter in a turn: turn 1"),
]
BROKEN_FILES = [  # --skip-bad does not help here
    ("nothing.jsonl", b"", r"nothing.jsonl: no document"),
    ("blank.jsonl", b"\n \r\n\n", r"blank.jsonl: no document"),
    ("utf16.jsonl", '{"text": "a"}\n'.encode("utf-16"), r"utf16.jsonl: this is UTF-16"),
    ("cut.json", b'[{"text": "a"},\n{"text": "b"}\n', r"cut.json:3: after record 2: the file ends inside its JSON array"),
    ("comma.json", b'[{"text": "a"}\n{"text": "b"}]', r"comma.json:2: after record 1: ',' or ']' expected between records, found '\{'"),
    ("syntax.json", b'[{"text": "a"},\n{"text": b}]', r"syntax.json:2: record 2: not JSON: Expecting value"),
    ("after.json", b'[{"text": "a"}]\n]', r"after.json:2: ']' after the end"),
    ("cut.jsonl.gz", gzip.compress(lines(GOOD) * 50)[:-12], r"cut.jsonl.gz: damaged gzip file"),
    ("fake.jsonl.gz", lines(GOOD), r"fake.jsonl.gz: damaged gzip file"),
    ("latin.json", b'[{"text": "a"},\n{"text": "caf\xe9"}]', r"latin.json:2: record 2: not UTF-8"),
    ("one-line.json", b'[{"text": "a"}, {"text": "b"}, {"text": c}]', r"one-line.json:1: record 3: not JSON: Expecting value"),
    ("one-line-latin.json", b'[{"text": "a"}, {"text": "caf\xe9"}]', r"one-line-latin.json:1: record 2: not UTF-8"),
    ("latin-after.json", b'[{"text": "a"}]\n\xe9', r"latin-after.json:2: not UTF-8"),
    ("latin.txt", b"In the\n\nbeginning\ncaf\xe9", r"latin.txt:4: not UTF-8"),
]


class Malformed(TokenizeCase):
    def clean(self, *names):
        self.assertEqual(sorted(path.name for path in self.dir.iterdir()), sorted(names))

    def test_records(self):
        for name, content, message in MALFORMED:
            with self.subTest(name):
                _, err = self.tokenize(content, "chatml", expect=4)
                self.assertRegex(err, r"tokenize: error: \S*in.jsonl" + message)
                self.clean("in.jsonl")  # no output, no hidden folder
        # all of them again among good ones: counted, and the good ones are there
        content = b"".join(lines(GOOD) + content.rstrip(b"\n").split(b"\n")[-1] + b"\n" for _, content, _ in MALFORMED)
        out, _ = self.tokenize(content, "chatml", "--skip-bad")
        self.assertRegex(out, rf"(?m)^refused +{len(MALFORMED)}\n")
        self.assertEqual(len(self.documents()), len(MALFORMED))

    def test_files(self):
        for name, content, message in BROKEN_FILES:
            with self.subTest(name):
                more = ["--separator", "<next>"] if name.endswith(".txt") else []
                _, err = self.tokenize(content, "chatml", "--skip-bad", *more, expect=4, name=name)
                self.assertRegex(err, message)
                (self.dir / name).unlink()
                self.clean()

    def test_records_of_an_array_are_numbered(self):
        """All on one line, and more of them than a chunk takes."""
        records = [{"text": "a"}] * 2499 + [{"text": ""}, {"text": "b"}, [7]]
        data = json.dumps(records).encode()
        _, err = self.tokenize(data, "chatml", expect=4, name="in.json")
        self.assertRegex(err, r"error: \S*in.json:1: record 2500: empty: text \(")
        _, err = self.tokenize(data, "chatml", "--skip-bad", "--refused", self.dir / "refused.jsonl", name="in.json")
        self.assertIn("in.json:1: record 2500: empty: text\n", err)
        self.assertIn("in.json:1: record 2502: not a JSON object: found a list\n", err)
        refused = [json.loads(line) for line in (self.dir / "refused.jsonl").read_text().splitlines()]
        self.assertEqual([(entry["line"], entry["record"]) for entry in refused], [(1, 2500), (1, 2502)])
        data = json.dumps(records[-3:], indent=1).encode()
        self.tokenize(data, "chatml", "--skip-bad", "--refused", self.dir / "refused.jsonl", name="in.json")
        refused = [json.loads(line) for line in (self.dir / "refused.jsonl").read_text().splitlines()]
        self.assertEqual([(entry["line"], entry["record"]) for entry in refused], [(2, 1), (8, 3)])

    def test_a_failure_leaves_an_old_file_as_it_was(self):
        self.tokenize([GOOD], "chatml")
        before = self.out.read_bytes()
        self.tokenize(lines(GOOD, {"text": ""}), "chatml", expect=4)
        self.assertEqual(self.out.read_bytes(), before)
        self.clean("in.jsonl", "out.h5")

    def test_tokenizers(self):
        good = json.loads((self.tokenizers["chatml"] / "tokenizer.json").read_text())
        config = {"eos_token": "<|im_end|>"}
        for name, files, message in (
                ("none", {"tokenizer.model": "x"}, "there is no tokenizer.json. Where there is only a tokenizer.model"),
                ("cut", {"tokenizer.json": json.dumps(good)[:500]}, "tokenizer.json is not JSON"),
                ("foreign", {"tokenizer.json": '{"model": {"type": "Magic"}}'}, "tokenizer.json: "),
                ("config", {"tokenizer.json": json.dumps(good), "tokenizer_config.json": "[]"}, "tokenizer_config.json should be a JSON object"),
                ("end", {"tokenizer.json": json.dumps(good), "tokenizer_config.json": '{"eos_token": "</s>"}'}, "the end token '</s>' is not in the"),
                ("number", {"tokenizer.json": json.dumps(good), "tokenizer_config.json": '{"eos_token": 2}'}, "a special token should be a string"),
                ("named", {"tokenizer.json": json.dumps(good), "tokenizer_config.json": json.dumps(
                    {**config, "chat_template": [{"name": "rag", "template": ""}]})}, "no template named default, only rag"),
                ("silent", {"tokenizer.json": json.dumps(good), "tokenizer_config.json": json.dumps(config)}, "no chat template")):
            with self.subTest(name):
                folder = self.dir / "models" / name
                folder.mkdir(parents=True)
                for file, text in files.items():
                    (folder / file).write_text(text)
                data = self.write([{"messages": [QUESTION, ANSWER]}])
                _, err = self.start("--tokenizer", folder, "--from", data, "--to", self.out, "--skip-bad", expect=4)
                self.assertIn(message, err)
                self.clean("in.jsonl", "models")

    def test_command_lines(self):
        data, model = self.write([GOOD]), self.tokenizers["chatml"]
        whole = ["--tokenizer", model, "--from", data, "--to", self.out]
        for extra, message in ((["--validation", "1.5"], "1.5: allowed are a part of the documents, above 0 and below 1 (0.02"),
                               (["--validation", "0"], "above 0 and below 1"),
                               (["--max-length", "1"], "at least 2"), (["--processes", "0"], "1 to 1024"), (["--train-on", "some"], "invalid choice"),
                               (["--date", "today"], "invalid fromisoformat value"), (["--separator", ""], "empty"), (["--bad"], "unrecognized"),
                               (["--to", self.dir], "this is a folder"), (["--to", self.dir / "no/out.h5"], "there is no folder"),
                               (["--to", data], "this is an input"), (["--from", "nowhere.jsonl"], "nowhere.jsonl: not found"),
                               (["--chat-template", "nowhere"], "--chat-template nowhere"), (["--end-token", "<none>"], "is not in the vocabulary"),
                               (["--from", model / "tokenizer.json", "--format", "wrong"], "invalid choice"), ([data], "unrecognized")):
            with self.subTest(extra=extra):
                _, err = self.start(*whole, *(["--name", "x"] if extra == [data] else []), *extra, expect=2)
                self.assertIn(message, err)
                self.clean("in.jsonl")
        rows = self.dir / "rows.parquet"  # the venv has no pyarrow
        rows.write_text("PAR1")
        _, err = self.start(*whole, "--from", rows, expect=2)
        self.assertIn("rows.parquet: reading Parquet needs pyarrow", err)
        odd = self.dir / "in.csv"
        odd.write_text("a,b")
        _, err = self.start(*whole, "--from", odd, expect=2)
        self.assertIn("in.csv: what is it?", err)

    def test_packages_that_are_not_there(self):
        data, model, program = self.write([GOOD]), self.tokenizers["chatml"], support.ROOT / "inputs/tokenize.py"
        requirements = f"pip install -r {support.ROOT / 'inputs/requirements.txt'}"
        (self.dir / "without").mkdir()
        for options, stand_in, message in (
                (["-S"], "", f"the Python packages h5py, jinja2, numpy, tokenizers are missing: {requirements}"),
                ([], "raise ModuleNotFoundError('', name='jinja2')", f"the Python package jinja2 is missing: {requirements}"),
                ([], "raise ImportError('libm.so:\\nno such file')", "the Python package jinja2 cannot be loaded: libm.so: no such file")):
            with self.subTest(message):
                (self.dir / "without/jinja2.py").write_text(stand_in)
                command = [VENV / "bin/python", "-B", *options, program, "--tokenizer", model, "--from", data, "--to", self.out]
                paths = {} if options else {"PYTHONPATH": str(self.dir / "without")}
                done = subprocess.run(list(map(str, command)), cwd=self.dir, env=paths, capture_output=True, text=True, timeout=120)
                self.assertEqual((done.returncode, done.stdout, done.stderr), (3, "", f"tokenize: error: {message}\n"))
                self.clean("in.jsonl", "without")

    def test_nothing_left_for_training(self):
        none, aside = self.write([{"text": ""}], "none.jsonl"), self.write([GOOD], "aside.jsonl")
        for records, more, why in (
                ([GOOD], ["--validation", 0.02], "--validation 0.02 took the only one"),
                ([GOOD] * 3, ["--validation", 0.9], "--validation 0.9 took all 3"),
                (none, ["--skip-bad", "--validation", aside], "the only one came from the file of --validation")):
            with self.subTest(why):
                _, err = self.tokenize(records, "chatml", *more, expect=4)
                self.assertIn(f"{self.out}: not written: no document is left for training: {why}\n", err)
                self.clean("aside.jsonl", "in.jsonl", "none.jsonl")

    def test_interrupted(self):
        data = self.write([{"text": verse * 40} for verse in VERSES])
        for number, processes in ((signal.SIGTERM, 1), (signal.SIGINT, 2)):
            command = [VENV / "bin/python", support.ROOT / "inputs/tokenize.py", "--tokenizer", self.tokenizers["chatml"], "--from", *[data] * 40,
                       "--to", self.out, "--processes", processes]
            process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True, start_new_session=True)
            deadline = time.monotonic() + 60
            while not any(re.match(r"\.out\.h5\.", path.name) for path in self.dir.iterdir()) and time.monotonic() < deadline:
                time.sleep(0.02)
            process.send_signal(number)
            _, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 130, err)
            self.assertIn("interrupted; nothing was written", err)
            self.assertNotIn("Traceback", err)
            self.clean("in.jsonl")


def setUpModule():
    from tokenize_case import load_tokenizers
    load_tokenizers()


if __name__ == "__main__":
    unittest.main()
