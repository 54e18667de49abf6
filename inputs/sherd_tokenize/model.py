"""The model's tokenizer: its files, its special tokens, and what it writes around a text."""
import json
import pathlib
import re

from tokenizers import Tokenizer

from .errors import DATA, USAGE, Stop, excerpt
from .places import byte_lengths

FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_files(path):
    """{name: bytes} of a Hugging Face folder, of a tokenizer.json alone, or of what rides in a sherd weights file or checkpoint."""
    path = pathlib.Path(path)
    try:
        if path.is_dir():
            found = {name: (path / name).read_bytes() for name in FILES if (path / name).is_file()}
        elif path.suffix == ".h5":
            import h5py
            with h5py.File(path, "r") as file:
                found = {name: file[f"files/{name}"][()].tobytes() for name in FILES if f"files/{name}" in file}
        else:
            found = {"tokenizer.json": path.read_bytes()}
    except OSError as error:
        raise Stop(DATA, f"{path}: {error.strerror or error}") from None
    if "tokenizer.json" not in found:
        raise Stop(DATA, f"{path}: there is no tokenizer.json. Where there is only a tokenizer.model, transformers makes one: "
                         "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)")
    return found


class Model:
    """`parsing` encodes a text with its control tokens as such, `plain` as the characters that they are written with; neither adds any."""

    def __init__(self, path, end_token=None, template_file=None):
        self.path = str(path)
        files = read_files(path)
        self.config = self.json(files, "tokenizer_config.json")
        self.names = {**self.json(files, "special_tokens_map.json"), **self.config}
        self.names = {key: self.content(self.names[key]) for key in NAMED if self.names.get(key)}
        described = self.json(files, "tokenizer.json")
        self.parsing = self.tokenizer({**described, "post_processor": None})
        self.plain = self.tokenizer({**described, "post_processor": None})
        self.plain.encode_special_tokens = True
        vocabulary = self.parsing.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise Stop(DATA, f"{path}: tokenizer.json has no vocabulary")
        self.vocab_size = max(vocabulary.values()) + 1
        added = self.parsing.get_added_tokens_decoder()
        self.byte_lengths, self.normal = byte_lengths(described, added)
        special = {token.content for token in added.values() if token.special}
        special |= {self.names[key] for key in ("bos_token", "eos_token") if key in self.names}
        self.special_ids = {vocabulary[text] for text in special if text in vocabulary}
        self.special_ids.discard(vocabulary.get(self.names.get("unk_token")))
        # longest first: of two that begin alike, the tokenizer takes the longer
        self.control = re.compile("|".join(map(re.escape, sorted(special, key=lambda text: (-len(text), text)))) or r"(?!)")
        self.bos = vocabulary.get(self.names.get("bos_token"))
        self.end = self.end_id(vocabulary, end_token)
        self.prefix, self.suffix = self.frame(self.tokenizer(described))
        self.template = self.template_source(files, template_file)

    def json(self, files, name):
        try:
            value = json.loads(files.get(name, b"{}").decode("utf-8-sig"))
        except ValueError as error:
            raise Stop(DATA, f"{self.path}: {name} is not JSON: {error}") from None
        if not isinstance(value, dict):
            raise Stop(DATA, f"{self.path}: {name} should be a JSON object")
        return value

    def content(self, token):
        """A special token's text; files name it as a string or as an object."""
        text = token.get("content") if isinstance(token, dict) else token
        if not isinstance(text, str):
            raise Stop(DATA, f"{self.path}: tokenizer_config.json: a special token should be a string, found {excerpt(token)}")
        return text

    def tokenizer(self, described):
        try:
            made = Tokenizer.from_str(json.dumps(described))
        except Exception as error:  # the library raises plain Exception
            raise Stop(DATA, f"{self.path}: tokenizer.json: {error}") from None
        made.no_truncation()  # saved settings would cut documents without a word
        made.no_padding()
        return made

    def end_id(self, vocabulary, end_token):
        text = end_token or self.names.get("eos_token")
        if text is not None and text not in vocabulary:
            raise Stop(USAGE if end_token else DATA, f"{self.path}: the end token {text!r} is not in the vocabulary")
        return vocabulary.get(text)

    def frame(self, whole):
        """(ids before, ids after) that the post-processor adds to a text, by looking; add_bos_token in the configuration wins."""
        bare, full = self.parsing.encode("a").ids, whole.encode("a").ids
        begin = next((i for i in range(len(full) - len(bare) + 1) if full[i:i + len(bare)] == bare), None)
        if begin is None:
            raise Stop(DATA, f"{self.path}: the post-processor of tokenizer.json changes more than the ends of a text")
        prefix, suffix = full[:begin], full[begin + len(bare):]
        wish = self.config.get("add_bos_token")
        if self.bos is not None and wish is False:
            prefix = [token for token in prefix if token != self.bos]
        if self.bos is not None and wish is True and self.bos not in prefix:
            prefix = [self.bos, *prefix]
        return prefix, [token for token in suffix if token != self.end]

    def framed(self, ids):
        """A text's ids with what the tokenizer writes around them, one BOS at most and exactly one end token.
        Returns (ids, how many were added in front)."""
        if self.end is None:
            raise Stop(DATA, f"{self.path}: tokenizer_config.json names no eos_token; --end-token TOKEN says what ends a text")
        prefix = self.prefix
        if self.bos is not None and ids[:1] == [self.bos]:
            prefix = [token for token in prefix if token != self.bos]
        while ids and ids[-1] == self.end:
            ids = ids[:-1]
        return [*prefix, *ids, *self.suffix, self.end], len(prefix)

    def template_source(self, files, template_file):
        """The chat template's text, or None: --chat-template, then chat_template.jinja, then tokenizer_config.json."""
        if template_file:
            try:
                return pathlib.Path(template_file).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise Stop(USAGE, f"--chat-template {template_file}: {error}") from None
        if "chat_template.jinja" in files:
            return files["chat_template.jinja"].decode(errors="replace")
        found = self.config.get("chat_template")
        if isinstance(found, list):  # several with names
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            if "default" not in named:
                raise Stop(DATA, f"{self.path}: chat_template has no template named default, only {', '.join(map(str, named))}; "
                                 "--chat-template FILE gives one")
            found = named["default"]
        if found is not None and not isinstance(found, str):
            raise Stop(DATA, f"{self.path}: chat_template in tokenizer_config.json should be a string")
        return found

    def words(self, ids):
        """Ids for people."""
        return " ".join(f"{token} ({self.parsing.id_to_token(token)})" for token in ids)
