"""Documents to ids and masks, a chunk at a time; the same chunk gives the same ids in any process."""
import array
import gc
import unicodedata
from dataclasses import dataclass, field

import numpy as np

from . import records
from .errors import DATA, Refused, Stop, excerpt
from .model import Model
from .places import ByBytes, ByOffsets, Listed, usable
from .template import ChatTemplate


@dataclass
class Settings:
    """What encoding depends on. `control`: plain, parse or refuse."""
    tokenizer: str
    chat_template: str | None
    end_token: str | None
    date: object
    format: str
    completions: bool
    control: str
    max_length: int | None


@dataclass
class Encoded:
    """A chunk's documents one after another, and what became of its records."""
    file: int
    position: int
    blank: int
    tokens: np.ndarray = None
    mask: np.ndarray = None                      # None: all tokens are targets
    lengths: np.ndarray = None
    targets: int = 0
    cut: int = 0
    cut_tokens: int = 0
    left_out: int = 0                            # cut so short that nothing to learn remained
    with_control: int = 0                        # documents whose text holds control tokens
    first: list = None                           # ids of its first document
    refused: list = field(default_factory=list)  # (number, its number in a JSON array or None, reason, detail)


class Job:
    """One document on its way: its text, and what is to be learned of it: `spans` of the text, None for all. `framed`: the tokenizer writes
    its ends, not a template; `parse`: control tokens in it are tokens."""

    def __init__(self, text, spans, framed, parse):
        self.text, self.spans, self.framed, self.parse = text, spans, framed, parse
        self.ids, self.places, self.runs = None, None, None


class Encoder:
    def __init__(self, settings):
        gc.set_threshold(100_000)  # a chunk is many lists and no cycles: looking for some after every 700 costs a tenth of the time
        self.settings = settings
        self.model = Model(settings.tokenizer, settings.end_token, settings.chat_template)
        self.dtype = np.uint16 if self.model.vocab_size <= 1 << 16 else np.uint32
        self.template = None
        if self.model.template is not None and settings.format in ("auto", "messages", "conversations", "alpaca"):
            self.template = ChatTemplate(self.model.template, self.model.names, self.model.control, settings.date)

    def encode(self, chunk):
        done = Encoded(chunk.file, chunk.position, chunk.blank)
        jobs = []
        for place, (_, item) in enumerate(chunk.items):
            try:
                document = records.document(records.parse(chunk.kind, item), self.settings.format, self.template is not None)
                jobs.append((place, self.job(document, done)))
            except Refused as error:
                done.refused.append((place, error.reason, error.detail))
        self.encode_texts([job for _, job in jobs])
        jobs = [entry for entry in jobs if self.marked(*entry, done)]
        self.check_by_decoding(jobs, done)
        refused = {place for place, _, _ in done.refused}
        self.gather([job for place, job in jobs if place not in refused], done)
        done.refused = [(chunk.items[place][0], None if chunk.first is None else chunk.first + place, reason, detail)
                        for place, reason, detail in sorted(done.refused)]
        return done

    def job(self, document, done):
        """Raises Refused, and Stop where there is no template for a conversation."""
        if document.messages is None:
            parse, spans = self.control(document.text, done), None
            if self.settings.completions and document.targets_from:
                spans = [(document.targets_from, len(document.text))]
            return Job(document.text, spans, True, parse)
        if self.template is None:
            raise Stop(DATA, f"{self.model.path}: no chat template (chat_template.jinja, or chat_template in tokenizer_config.json); "
                             "conversations need one: --chat-template FILE")
        layout = self.template.layout(document.messages, self.settings.completions)
        job = Job(layout.text, layout.targets if self.settings.completions else None, False, True)
        contents = [message["content"] for message in document.messages]
        if not all([self.control(content, done) for content in contents]):
            job.ids, job.places = self.around_plain(layout)
        return job

    def control(self, text, done):
        """Whether a text can be encoded with control tokens read as such: where it has none, or where that is wanted."""
        found = self.model.control.search(text)
        if not found or self.settings.control == "parse":
            return True
        if self.settings.control == "refuse":
            raise Refused("a control token in a text", found.group())
        done.with_control += 1
        return False

    def around_plain(self, layout):
        """(ids, places) of a conversation in which somebody wrote a control token: the template's are tokens, theirs are characters.
        The text is encoded in pieces; that this is right for the tokenizer is seen by doing the same with all of them as tokens."""
        model, text = self.model, layout.text
        everything = list(model.control.finditer(text))
        if layout.texts is None:
            raise Refused("a control token in a text", "and the chat template rewrites the text")
        ours = [found for found in everything if not any(begin < found.end() and found.start() < end for begin, end in layout.texts)]
        if self.pieces(text, everything, model.parsing)[0] != model.parsing.encode(text, add_special_tokens=False).ids:
            raise Refused("a control token in a text", "which this tokenizer cannot take as plain characters")
        ids, offsets = self.pieces(text, ours, model.plain)
        if sum(token in model.special_ids for token in ids) != len(ours):
            raise Refused("a control token in a text", "which this tokenizer cannot take as plain characters")
        return ids, ByOffsets(text, len(ids), Listed(offsets))

    def pieces(self, text, tokens, tokenizer):
        ids, offsets, at = [], [], 0
        for begin, end in [*(found.span() for found in tokens), (len(text), len(text))]:
            if at < begin:
                piece = tokenizer.encode(text[at:begin], add_special_tokens=False)
                ids += piece.ids
                offsets += [(at + first, at + last) for first, last in piece.offsets]
            if begin < end:
                ids.append(self.model.parsing.token_to_id(text[begin:end]))
                offsets.append((begin, end))
            at = end
        return ids, offsets

    def encode_texts(self, jobs):
        """Ids of all jobs that have none yet, and places where a mask asks for them. The tokenizer's fast call reports none."""
        model = self.model
        for parse in (False, True):
            tokenizer = model.parsing if parse else model.plain
            some = [job for job in jobs if job.ids is None and job.parse == parse]
            fast = [job for job in some if job.spans is None or (model.byte_lengths is not None and usable(job.text, model.normal))]
            for job, encoding in zip(fast, getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)([job.text for job in fast])):
                job.ids = encoding.ids
                job.places = ByBytes(job.text, job.ids, model.byte_lengths) if job.spans is not None else None
            located = [job for job in some if job.ids is None or (job.places and not job.places.whole())]
            for job, encoding in zip(located, tokenizer.encode_batch([job.text for job in located])):
                job.ids = encoding.ids
                job.places = ByOffsets(job.text, len(job.ids), encoding)

    def marked(self, place, job, done):
        """Finds a document's targets among its ids, and adds what stands around a text. False where it is refused."""
        try:
            if not job.parse and any(token in self.model.special_ids for token in job.ids):
                raise Refused("a control token in a text", "which this tokenizer cannot take as plain characters")
            if job.spans is not None:
                job.runs = [(job.places.border(begin), job.places.border(end)) for begin, end in job.spans]
        except Refused as error:
            done.refused.append((place, error.reason, error.detail))
            return False
        return True

    def check_by_decoding(self, jobs, done):
        """What is to be learned must decode to what it should be. White space is left out: tokenizers write it in their own ways."""
        wanted = [(place, job.text[slice(*span)], job.ids[slice(*run_)])
                  for place, job in jobs if job.runs for span, run_ in zip(job.spans, job.runs)]
        unknown = self.model.parsing.token_to_id(self.model.names.get("unk_token", ""))
        decoded = self.model.parsing.decode_batch([ids for _, _, ids in wanted], skip_special_tokens=False)
        for (place, text, ids), found in zip(wanted, decoded):
            if found != text and bones(found) != bones(text) and unknown not in ids:
                done.refused.append((place, "no exact mask", f"the targets decode to {excerpt(found)}, not to {excerpt(text)}"))

    def gather(self, jobs, done):
        tokens, lengths, masks = array.array("H" if self.dtype == np.uint16 else "I"), [], []
        targeted = any(job.runs is not None for job in jobs)
        for job in jobs:
            ids, runs = job.ids, job.runs
            if job.framed:
                ids, added = self.model.framed(ids)
                # the end token is learned with the text that it ends
                runs = runs and [(begin + added, len(ids)) for begin, _ in runs]
            runs = [(0, len(ids))] if runs is None else runs
            if self.settings.max_length and len(ids) > self.settings.max_length:
                done.cut += 1
                done.cut_tokens += len(ids) - self.settings.max_length
                ids = ids[:self.settings.max_length]
            runs = [(begin, min(end, len(ids))) for begin, end in runs if begin < len(ids)]
            targets = sum(end - max(begin, 1) for begin, end in runs if end > begin)  # the first token is never one
            if not targets:
                done.left_out += 1
                continue
            if targeted:
                mask = np.zeros(len(ids), np.uint8)
                for begin, end in runs:
                    mask[begin:end] = 1
                masks.append(mask)
            done.first = done.first or ids
            done.targets += targets
            tokens.fromlist(ids)
            lengths.append(len(ids))
        done.tokens = np.frombuffer(tokens, self.dtype) if tokens else np.zeros(0, self.dtype)
        done.lengths = np.array(lengths, np.uint32)
        done.mask = np.concatenate(masks) if masks else None


def bones(text):
    return "".join(unicodedata.normalize("NFKC", text).split())
