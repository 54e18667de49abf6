"""Records to documents: which format a record is in, and whether everything that it needs is there."""
import json
from dataclasses import dataclass

from .errors import Refused, excerpt
from .sources import Twice, unique

FORMATS = ("messages", "conversations", "completion", "alpaca", "text")
NEEDED = {"messages": ("messages",), "conversations": ("conversations",), "completion": ("prompt", "completion"),
          "alpaca": ("instruction", "output"), "text": ("text",)}
SPEAKERS = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
            "model": "assistant", "bot": "assistant", "tool": "tool", "function": "tool", "observation": "tool"}
ROLES = ("system", "developer", "user", "assistant", "tool")
# parts of a turn whose text would be missing from the document
UNREAD = ("tool_calls", "function_call", "reasoning_content", "reasoning", "images", "audio")
# Stanford Alpaca's prompts (github.com/tatsu-lab/stanford_alpaca), for models without a chat template
ALPACA = ("Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
          "### Instruction:\n{instruction}\n\n### Response:\n")
ALPACA_INPUT = ("Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.\n\n"
                "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:\n")
DECODER = json.JSONDecoder(object_pairs_hook=unique)


@dataclass
class Document:
    """Either a text, of which the characters from `targets_from` on are to be learned, or a conversation."""
    text: str = ""
    targets_from: int = 0
    messages: list | None = None


def parse(kind, item):
    """A record from an item of a chunk. Raises Refused."""
    if kind == "object":
        return item
    if isinstance(item, bytes):
        try:
            item = item.decode()
        except UnicodeDecodeError as error:
            raise Refused("not UTF-8", f"{error.reason} at byte {error.start + 1}") from None
    if kind == "text":
        return {"text": item.rstrip("\r\n")}
    try:
        return DECODER.decode(item)
    except json.JSONDecodeError as error:
        raise Refused("not JSON", f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise Refused("not JSON", "nested too deeply") from None
    except ValueError as error:  # a number with thousands of digits
        raise Refused("not JSON", str(error)) from None


def document(record, wanted, chat):
    """A record's document. `wanted`: a format's name or `auto`; `chat`: there is a chat template. Raises Refused."""
    if isinstance(record, Twice):
        raise Refused("a key comes twice", excerpt(record.key))
    if not isinstance(record, dict):
        raise Refused("not a JSON object", f"found {kind_of(record)}")
    name = None if wanted == "auto" else wanted
    if name is None:
        name = next((name for name in FORMATS if all(record.get(key) is not None for key in NEEDED[name])), None)
    if name is None:  # none is whole: say what is missing of the first that is there in part
        name = next((name for name in FORMATS if any(key in record for key in NEEDED[name])), None)
    if name is None:
        found = ", ".join(map(excerpt, list(record)[:8])) or "none"
        raise Refused("no known keys", f"found {found}; expected text, or prompt and completion, "
                                       "or instruction and output, or conversations, or messages")
    return READERS[name](record, chat)


def text(record, _):
    return Document(string(record, "text"))


def completion(record, _):
    prompt, answer = string(record, "prompt", blank=True), string(record, "completion")
    return Document(prompt + answer, len(prompt))


def alpaca(record, chat):
    instruction, answer = string(record, "instruction"), string(record, "output")
    given = string(record, "input", blank=True) if record.get("input") is not None else ""
    if chat:
        question = f"{instruction}\n\n{given}" if given.strip() else instruction
        return Document(messages=[{"role": "user", "content": question}, {"role": "assistant", "content": answer}])
    prompt = (ALPACA_INPUT if given.strip() else ALPACA).format(instruction=instruction, input=given)
    return Document(prompt + answer, len(prompt))


def conversations(record, _):
    def turn(entry, where):
        speaker = string(entry, "from", where)
        if speaker.lower() not in SPEAKERS:
            raise Refused("unknown speaker", f"{where}: {excerpt(speaker)}; known are {', '.join(SPEAKERS)}")
        role = SPEAKERS[speaker.lower()]
        return {"role": role, "content": string(entry, "value", f"{where} ({role})")}
    return Document(messages=turns(record, "conversations", turn))


def messages(record, _):
    def turn(entry, where):
        role = string(entry, "role", where)
        if role not in ROLES:
            raise Refused("unknown role", f"{where}: {excerpt(role)}; known are {', '.join(ROLES)}")
        for key in UNREAD:
            if entry.get(key):
                raise Refused("a turn holds more than text", f"{where} ({role}): {key}")
        if isinstance(entry.get("content"), list):
            entry = {"content": joined(entry["content"], where)}
        return {"role": role, "content": string(entry, "content", f"{where} ({role})")}
    return Document(messages=turns(record, "messages", turn))


READERS = {"messages": messages, "conversations": conversations, "completion": completion, "alpaca": alpaca, "text": text}


def turns(record, key, turn):
    value = record.get(key)
    if not isinstance(value, list):
        raise Refused("missing or of another type", f"{key} should be a list, found {kind_of(value)}")
    if not value:
        raise Refused("empty", key)
    made = []
    for number, entry in enumerate(value, 1):
        if isinstance(entry, Twice):
            raise Refused("a key comes twice", f"turn {number}: {excerpt(entry.key)}")
        if not isinstance(entry, dict):
            raise Refused("missing or of another type", f"turn {number} of {key} should be an object, found {kind_of(entry)}")
        made.append(turn(entry, f"turn {number}"))
    return made


def joined(parts, where):
    """The text of a content in parts, as OpenAI's format has it."""
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Refused("a turn holds more than text", f"{where}: a part of its content that is not of type text")
    return "".join(part["text"] for part in parts)


def string(record, key, where="", blank=False):
    """A string of a record; not blank unless that is allowed."""
    value, place = record.get(key), f"{where}: {key}" if where else key
    if not isinstance(value, str):
        raise Refused("missing or of another type", f"{place} should be a string, found {kind_of(value) if key in record else 'nothing'}")
    if not blank and not value.strip():
        raise Refused("empty", place)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Refused("half a surrogate pair", f"{place}, character {error.start + 1}: no Unicode text") from None
    return value


def kind_of(value):
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string", list: "a list",
             dict: "an object"}
    return names.get(type(value), type(value).__name__)
