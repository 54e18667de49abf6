"""Input files, read as a stream of chunks of records that nobody has looked into yet."""
import codecs
import gzip
import json
import re
import zlib
from dataclasses import dataclass, field

from .errors import DATA, USAGE, Stop

CHUNK_BYTES = 1 << 20       # a chunk is some such bytes of input...
CHUNK_RECORDS = 2000        # ... or so many records
MOST_RECORD = 256 << 20     # bytes of one record; memory holds a few of them
BLOCK = 1 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SPACE = re.compile(r"[ \t\r\n]*")


@dataclass
class Chunk:
    """Records of one file. `kind` says what an item is: `json` (a line of bytes), `text` (bytes or str) or `object` (parsed)."""
    file: int
    kind: str
    items: list = field(default_factory=list)  # (number, item): the line that it begins on, or its row in Parquet
    size: int = 0
    blank: int = 0
    position: int = 0                          # bytes of the file read so far
    first: int | None = None                   # of a JSON array: its first item's number in the array, as many can be on one line

    def add(self, number, item, size):
        self.items.append((number, item))
        self.size += size

    def full(self):
        return self.size >= CHUNK_BYTES or len(self.items) >= CHUNK_RECORDS


class Twice:
    """Stands in for a JSON object in which a key comes twice: Python would keep the last without a word."""

    def __init__(self, key):
        self.key = key


def unique(pairs):
    """For json's object_pairs_hook."""
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen = set()
    return Twice(next(key for key, _ in pairs if key in seen or seen.add(key)))


def read_chunks(path, index, separator=None):
    """Yields the chunks of one file; its kind follows from its name. Raises Stop where the file itself is at fault."""
    name = str(path).lower()
    if name.endswith(".parquet"):
        yield from parquet(path, index)
        return
    try:
        with open(path, "rb") as raw:
            stream = gzip.GzipFile(fileobj=raw) if name.endswith(".gz") else raw
            name = name.removesuffix(".gz")
            if name.endswith(".txt"):
                chunks = separated(path, index, stream, separator) if separator else lines(path, index, stream, "text")
            elif name.endswith((".jsonl", ".ndjson", ".json")):
                chunks = json_records(path, index, stream)
            else:
                raise Stop(USAGE, f"{path}: what is it? Names end in .jsonl, .ndjson, .json, .txt (.gz after them) or .parquet")
            for chunk in chunks:
                chunk.position = raw.tell()
                yield chunk
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise Stop(DATA, f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise Stop(DATA, f"{path}: {error.strerror or error}") from None


def json_records(path, index, stream):
    """JSON lines, or one JSON array: what the first character says."""
    begin = stream.read(64)
    while begin and not begin.removeprefix(BYTE_ORDER_MARK).strip():
        more = stream.read(64)
        if not more:
            break
        begin += more
    stream.seek(0)
    array = begin.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")
    return array_records(path, index, stream) if array else lines(path, index, stream, "json")


def lines(path, index, stream, kind):
    chunk, number = Chunk(index, kind), 0
    while line := stream.readline(MOST_RECORD + 1):
        number += 1
        if len(line) > MOST_RECORD:
            raise Stop(DATA, f"{path}:{number}: a line of more than {MOST_RECORD >> 20} MiB")
        if number == 1:
            line = without_mark(path, line)
        if line.strip():
            chunk.add(number, line, len(line))
        else:
            chunk.blank += 1
        if chunk.full():
            yield chunk
            chunk = Chunk(index, kind)
    yield chunk


def without_mark(path, line):
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Stop(DATA, f"{path}: this is UTF-16 (PowerShell writes it); UTF-8 is read: iconv -f UTF-16 -t UTF-8")
    return line.removeprefix(BYTE_ORDER_MARK)


class TextStream:
    """A window of decoded text that moves over a file. `at`: where the unread part begins; `line`: its line; `record`: the number of the
    record that is being read, where they are counted."""

    def __init__(self, path, stream):
        self.path, self.stream = path, stream
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.at, self.line, self.ended, self.record, self.fault = "", 0, 1, False, None, None

    def stop(self, message, line=None, after=False):
        """The Stop for what is wrong here; `after`: behind the last record, not in this one."""
        record = "" if self.record is None else f"after record {self.record - 1}: " if after else f"record {self.record}: "
        return Stop(DATA, f"{self.path}:{line or self.line}: {record}{message}")

    def more(self):
        """Reads on, twice as much as waits already, so that looking again at a long record stays linear."""
        waiting = len(self.text) - self.at
        if waiting > MOST_RECORD:
            what = "a document of " if self.record is None else ""
            raise self.stop(f"{what}more than {MOST_RECORD >> 20} MiB, or without an end")
        if self.fault:
            raise self.stop(f"not UTF-8: {self.fault.reason}", self.line + self.text.count("\n", self.at))
        block = self.stream.read(max(BLOCK, waiting))
        try:
            more = self.decoder.decode(block, final=not block)
        except UnicodeDecodeError as error:  # told where the reader comes to it, so that its record is known
            self.fault, more = error, error.object[:error.start].decode()
        self.text = self.text[self.at:] + more
        self.at, self.ended = 0, not block and not self.fault

    def take(self, end):
        self.line += self.text.count("\n", self.at, end)
        self.at = end

    def peek(self):
        """The next character that is not white space, '' at the end."""
        while True:
            self.take(SPACE.match(self.text, self.at).end())
            if self.at < len(self.text) or self.ended:
                return self.text[self.at:self.at + 1]
            self.more()


def array_records(path, index, stream):
    """The records of a JSON array. What follows a syntax error in it cannot be told apart, so there the run ends."""
    text, decode = TextStream(path, stream), json.JSONDecoder(object_pairs_hook=unique).raw_decode
    text.record = 1
    chunk = Chunk(index, "object", first=1)
    text.peek()
    text.take(text.at + 1)
    while text.peek() != "]":
        if text.record > 1:
            if (found := text.peek()) != ",":
                raise text.stop(f"',' or ']' expected between records, found {found!r}" if found else
                                "the file ends inside its JSON array: it was cut short", after=True)
            text.take(text.at + 1)
            text.peek()
        line, start = text.line, text.at
        record, end = array_record(text, decode)
        chunk.add(line, record, end - start)
        text.take(end)
        text.record += 1
        if chunk.full():
            yield chunk
            chunk = Chunk(index, "object", first=text.record)
    text.take(text.at + 1)
    text.record = None
    if found := text.peek():
        raise Stop(DATA, f"{path}:{text.line}: {found!r} after the end of the JSON array")
    yield chunk


def array_record(text, decode):
    while True:
        try:
            record, end = decode(text.text, text.at)
            if end < len(text.text) or text.ended:
                return record, end
        except (ValueError, RecursionError) as error:
            if text.ended:
                line = text.line + (text.text.count("\n", text.at, error.pos) if isinstance(error, json.JSONDecodeError) else 0)
                what = getattr(error, "msg", str(error))
                raise text.stop(f"not JSON: {what}; in an array nothing after it can be read", line) from None
        text.more()


def separated(path, index, stream, separator):
    """Documents of a text file with a separator between them; line ends around a document are not part of it."""
    text, chunk = TextStream(path, stream), Chunk(index, "text")
    while True:
        end = text.text.find(separator, text.at)
        if end < 0 and not text.ended:
            text.more()
            continue
        end = len(text.text) if end < 0 else end
        piece = text.text[text.at:end]
        body = piece.strip("\r\n")
        if body.strip():
            begin = text.line + piece[:len(piece) - len(piece.lstrip("\r\n"))].count("\n")
            chunk.add(begin, body, len(body))
        elif end < len(text.text):
            chunk.blank += 1
        if end >= len(text.text):
            break
        text.take(end + len(separator))
        if chunk.full():
            yield chunk
            chunk = Chunk(index, "text")
    yield chunk


def parquet(path, index):
    try:
        import pyarrow.parquet
    except ImportError:
        raise Stop(USAGE, f"{path}: reading Parquet needs pyarrow: pip install pyarrow") from None
    number = 0
    try:
        with open(path, "rb") as raw:
            for batch in pyarrow.parquet.ParquetFile(raw).iter_batches(batch_size=CHUNK_RECORDS):
                chunk = Chunk(index, "object")
                for row in batch.to_pylist():
                    number += 1
                    chunk.add(number, row, 1)
                chunk.position = raw.tell()
                yield chunk
    except (pyarrow.ArrowException, OSError) as error:
        raise Stop(DATA, f"{path}: {error}") from None
