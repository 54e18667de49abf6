"""Which token begins at a character: where a mask changes. A border that lies inside a token is refused, never moved."""
import unicodedata

import numpy as np

from .errors import Refused, excerpt


class ByOffsets:
    """By the places that the tokenizer reports. `offsets`: an Encoding, or whatever answers as it does."""

    def __init__(self, text, size, offsets):
        self.text, self.size, self.offsets = text, size, offsets

    def border(self, place):
        """The first token that stands for characters from `place` on. Raises Refused where one lies across."""
        if place >= len(self.text):
            return self.size
        token = self.offsets.char_to_token(place)
        if token is None:
            raise Refused("no exact mask", f"the tokenizer drops {excerpt(self.text[place])}, where the mask should change")
        begin, end = self.offsets.token_to_chars(token)
        if begin < place:
            raise across(self.text[begin:end])
        # a token for no character: a prefix that the tokenizer adds
        while token and self.offsets.token_to_chars(token - 1) == (place, place):
            token -= 1
        return token


class Listed:
    """Offsets that are already a list, with an Encoding's two questions."""

    def __init__(self, offsets):
        self.offsets = offsets

    def char_to_token(self, place):
        return next((token for token, (begin, end) in enumerate(self.offsets) if begin <= place < end), None)

    def token_to_chars(self, token):
        return self.offsets[token]


class ByBytes:
    """By the bytes that each token stands for, in byte-level tokenizers: they need not report places then, and are faster."""

    def __init__(self, text, ids, lengths):
        self.text, self.ends = text, np.cumsum(lengths[ids])

    def whole(self):
        """Whether the tokens stand for the text, all of it; if not, this cannot be used."""
        return len(self.ends) > 0 and self.ends[-1] == self.at(len(self.text))

    def at(self, place):
        return place if self.text.isascii() else len(self.text[:place].encode())

    def border(self, place):
        """As above."""
        if place == 0:
            return 0
        place = self.at(place)
        token = int(np.searchsorted(self.ends, place))
        if self.ends[token] != place:
            begin = int(self.ends[token - 1]) if token else 0
            raise across(self.text.encode()[begin:int(self.ends[token])].decode(errors="replace"))
        return token + 1


def across(token):
    return Refused("no exact mask", f"one token, {excerpt(token)}, is partly prompt and partly answer; white space at the end of a prompt "
                                    "belongs to the beginning of the answer")


def byte_lengths(described, added):
    """(bytes of every id, whether texts must be in normal form C) of a byte-level BPE; (None, False) of any other tokenizer. `described`:
    its tokenizer.json; `added`: {id: added token}. In a byte-level vocabulary each character stands for one byte."""
    steps = described.get("pre_tokenizer") or {}
    steps = steps.get("pretokenizers", [steps])
    normalizer = described.get("normalizer")
    if (described["model"].get("type", "BPE") != "BPE" or (normalizer or {}).get("type", "NFC") != "NFC"
            or not any(step.get("type") == "ByteLevel" for step in steps)
            or any(step.get("add_prefix_space") for step in steps) or (described.get("decoder") or {}).get("type") != "ByteLevel"):
        return None, False
    sizes = {id: len(token) for token, id in described["model"]["vocab"].items()}
    sizes.update({id: len(token.content.encode()) for id, token in added.items()})
    lengths = np.zeros(max(sizes, default=-1) + 1, np.int64)
    lengths[list(sizes)] = list(sizes.values())
    return lengths, normalizer is not None


def usable(text, normal):
    return not normal or text.isascii() or unicodedata.is_normalized("NFC", text)
