"""Conversations to text by the model's chat template, and the exact places of what the assistant says in it.

Where a turn's text lies is found by rendering once more with a marker in place of every turn's text. The two renderings must agree in
everything else; then each text lies between its neighbours, whole, and none was dropped or rewritten. What is to be learned begins where
a prompt would end (the conversation so far, rendered with add_generation_prompt) and ends with the turn's own end token.
"""
import datetime
import json
import re

import jinja2
import jinja2.ext
import jinja2.sandbox

from .errors import DATA, Refused, Stop, excerpt

# Unicode's noncharacters, which no text should contain
OPEN, CLOSE = "\ufdd0", "\ufdd1"
MARKER = re.compile(f"{OPEN}([0-9]+){CLOSE}")
WAYS = (lambda text: text, str.strip, str.rstrip, str.lstrip)  # what templates do to a turn's white space
FRAMES = 4096  # kept at most
REWRITES = "the chat template rewrites or drops a turn"


class Generation(jinja2.ext.Extension):
    """{% generation %} blocks, with which some templates mark the assistant's turns: rendered as what is in them."""
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Layout:
    """A rendered conversation. `texts`: (begin, end) of each turn's text, None where the template rewrites some;
    `targets`: (begin, end) of what is to be learned, in order."""

    def __init__(self, text, texts, targets):
        self.text, self.texts, self.targets = text, texts, targets


class ChatTemplate:
    def __init__(self, source, names, control, date):
        self.names = names
        self.control = control
        self.asks_date = "strftime_now" in source
        # as transformers does (utils/chat_template_utils.py)
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = tojson
        environment.globals["raise_exception"] = raise_exception
        moment = datetime.datetime.combine(date, datetime.time())
        environment.globals["strftime_now"] = moment.strftime
        try:
            self.compiled = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise Stop(DATA, f"the chat template, line {error.lineno}: {error.message}") from None
        # a plain dict in place of jinja's chain of them: every rendering walks through it
        self.compiled.globals = dict(self.compiled.globals)
        self.turn_end, self.rest = "", ""
        self.frames = {}
        self.probe()

    def render(self, messages, prompt=False):
        try:
            return self.compiled.render(messages=messages, add_generation_prompt=prompt, tools=None, documents=None, **self.names)
        except Exception as error:  # a template's code can raise anything
            raise Refused("the chat template refuses it", str(error) or type(error).__name__) from None

    def probe(self):
        """How the template ends an assistant's turn: up to and including the first control token. Refuses a template that hides the
        assistant's words even in the simplest conversation."""
        simple = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
        try:
            after = MARKER.split(self.render(marked(simple)))
            if len(after) != 5:
                raise Refused(REWRITES, f"{len(after) // 2} of 2 texts found again")
            self.rest = after[-1]
            found = self.control.search(self.rest)
            self.turn_end = self.rest[:found.end()] if found else self.rest
            self.layout(simple, True)
        except Refused as error:
            raise Stop(DATA, f"the chat template cannot be used: for one question and one answer, {error}") from None

    def ends_turns(self):
        return self.control.search(self.turn_end) is not None

    def layout(self, messages, targets):
        """Renders a conversation; with `targets`, finds what is to be learned. Raises Refused where the places are not certain."""
        said = [number for number, message in enumerate(messages) if message["role"] == "assistant"]
        if targets and not said:
            raise Refused("no assistant turn")
        for number, message in enumerate(messages, 1):
            if OPEN in message["content"] or CLOSE in message["content"]:
                raise Refused("a noncharacter in a turn", f"turn {number}: U+FDD0 or U+FDD1, which no text should contain")
        text = self.render(messages)
        texts = fit(text, *self.frame(messages), messages)
        if not targets:
            return Layout(text, texts, [])
        spans = [self.span(text, messages, number, texts) for number in said]
        return Layout(text, texts, spans)

    def frame(self, messages):
        """(what the template writes around the turns, their order): a rendering with markers in place of texts depends on the roles only, of
        which data have few sequences."""
        roles = tuple(message["role"] for message in messages)
        if roles in self.frames:
            return self.frames[roles]
        pieces = MARKER.split(self.render(marked(messages)))
        literals, order = pieces[0::2], [int(number) for number in pieces[1::2]]
        for number, role in enumerate(roles):
            if order.count(number) != 1:
                times = "drops" if number not in order else "repeats"
                raise Refused(REWRITES, f"it {times} turn {number + 1} ({role})")
        if len(self.frames) < FRAMES:
            self.frames[roles] = literals, order
        return literals, order

    def span(self, text, messages, number, texts):
        """(begin, end) of the assistant's turn `number` in the conversation's text."""
        where = f"turn {number + 1} (assistant)"
        before = self.render(messages[:number], prompt=True)
        if not text.startswith(before):
            raise Refused("no exact mask", f"{where}: the prompt that asks for it is not what stands before it in the conversation")
        if texts:
            begin, end = texts[number]
        else:  # the template rewrites some text: only if whole conversations up to here begin the text is it certain where the turn ends
            upto = self.render(messages[:number + 1])
            if not text.startswith(upto) or not upto.endswith(self.rest):
                raise Refused(REWRITES, f"{where}: the conversation up to it does not stand in the whole one")
            end = len(upto) - len(self.rest)
            begin = end
        if len(before) > begin:
            raise Refused("no exact mask", f"{where}: the prompt that asks for it reaches into it")
        if not text.startswith(self.turn_end, end):
            raise Refused("no exact mask", f"{where}: it does not end in {excerpt(self.turn_end)}")
        return len(before), end + len(self.turn_end)


def marked(messages):
    return [{**message, "content": f"{OPEN}{number}{CLOSE}"} for number, message in enumerate(messages)]


def fit(text, literals, order, messages):
    """The places of all turns' texts such that they and the literals between them make the text; None where there are none."""
    padded = any(message["content"] != message["content"].strip() for message in messages)
    ways = WAYS if padded else WAYS[:1]
    for own in ways:
        for others in ways:
            at, places, made = len(literals[0]), [None] * len(messages), [literals[0]]
            for number, literal in zip(order, literals[1:]):
                message = messages[number]
                content = (own if message["role"] == "assistant" else others)(message["content"])
                places[number] = (at, at + len(content))
                at += len(content) + len(literal)
                made += [content, literal]
            if "".join(made) == text:
                return places
    # rewritten: what the assistant said may be (span() then decides), but nobody's words may be missing
    for number, message in enumerate(messages):
        if message["role"] != "assistant" and message["content"].strip() not in text:
            raise Refused(REWRITES, f"turn {number + 1} ({message['role']}) is not in the text as it was")
    return None


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.TemplateError(message)
