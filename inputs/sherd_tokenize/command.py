"""The command line, and the way from files to a token file."""
import argparse
import collections
import concurrent.futures
import contextlib
import datetime
import importlib
import multiprocessing
import os
import pathlib
import shlex
import signal
import sys
import time

from .errors import DATA, MACHINE, USAGE, Stop
from .records import FORMATS

PACKAGES = ("h5py", "jinja2", "numpy", "tokenizers")  # of inputs/requirements.txt
BYTES_A_PROCESS = 8 << 20  # with less input than this, another process costs more than it brings

HELP = """
Records: {"text"} | {"prompt", "completion"} | {"instruction", "input", "output"} | {"conversations"} | {"messages"}, as JSON lines, a JSON
array or Parquet; or plain text. docs/tokenizing.md tells the rules. Exit codes: 0 done, 2 command line, 3 machine, 4 data.
"""


def arguments(argv):
    parser = argparse.ArgumentParser(prog="tokenize.py", description="Makes a token file for sherd.", epilog=HELP,
                                     formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    add = parser.add_argument
    add("--tokenizer", required=True, metavar="PATH", help="the model's folder, a tokenizer.json, or a sherd weights file that carries one")
    add("--from", "--in", dest="inputs", required=True, nargs="+", metavar="FILE", help=".jsonl, .ndjson, .json, .txt (also .gz), .parquet")
    add("--to", required=True, metavar="FILE.h5", help="the token file; one that is there is replaced when the new one is whole")
    add("--format", choices=("auto", *FORMATS), default="auto", help="auto: what each record's keys say")
    add("--train-on", choices=("all", "completions"), default="completions",
        help="what is learned of documents with a prompt: completions (default), the assistant's turns only; all, everything")
    add("--validation", metavar="PART|FILE",
        help="part of the documents to set aside, above 0 and below 1, such as 0.02; or a file of them")
    add("--seed", type=int, default=0, help="chooses the documents that --validation PART sets aside (0)")
    add("--max-length", type=int, metavar="N", help="cut documents after N tokens")
    add("--separator", metavar="TEXT", help=r"what stands between documents of a .txt file (\n, \t are understood); default: a line is one")
    add("--date", type=datetime.date.fromisoformat, metavar="YYYY-MM-DD", help="the date that chat templates see (today)")
    add("--control-tokens", choices=("plain", "parse", "refuse"), default="plain",
        help="control tokens written in a text: plain characters (default), read as tokens, or a refused document")
    add("--chat-template", metavar="FILE", help="a chat template in place of the model's own")
    add("--end-token", metavar="TOKEN", help="what ends a text, in place of the model's eos_token")
    add("--name", help="the tokenizer's name in the file (the last part of --tokenizer)")
    add("--processes", type=int, metavar="N", help="default: the cores there are, fewer for small inputs")
    add("--skip-bad", action="store_true", help="leave refused documents out and count them; else the first ends the run (exit code 4)")
    add("--refused", metavar="FILE", help="list every refused document, one JSON object a line")
    return parser.parse_args(argv)


def check(options):
    """What argparse does not see. Sets `fraction` and `validation_file`."""
    options.fraction, options.validation_file = 0.0, None
    if options.validation is not None:
        try:
            options.fraction = float(options.validation)
        except ValueError:
            options.validation_file = options.validation
        if options.validation_file is None and not 0 < options.fraction < 1:
            raise Stop(USAGE, f"--validation {options.validation}: allowed are a part of the documents, above 0 and below 1 "
                              "(0.02 is two of a hundred), and the name of a file of them")
    if options.max_length is not None and options.max_length < 2:
        raise Stop(USAGE, f"--max-length {options.max_length}: at least 2, as a document's first token is never learned")
    if options.processes is not None and not 1 <= options.processes <= 1024:
        raise Stop(USAGE, f"--processes {options.processes}: 1 to 1024")
    if options.separator is not None:
        options.separator = options.separator.replace("\\n", "\n").replace("\\t", "\t")
        if not options.separator:
            raise Stop(USAGE, "--separator: empty")
    options.paths = [*options.inputs, *([options.validation_file] if options.validation_file else [])]
    for path in options.paths:
        if not os.path.exists(path):
            raise Stop(USAGE, f"{path}: not found")
        if not os.path.isfile(path):
            raise Stop(USAGE, f"{path}: it is no file")
        if os.path.exists(options.to) and os.path.samefile(path, options.to):
            raise Stop(USAGE, f"--to {options.to}: this is an input")
        if options.refused and os.path.exists(options.refused) and os.path.samefile(path, options.refused):
            raise Stop(USAGE, f"--refused {options.refused}: this is an input")
    if options.refused and os.path.abspath(options.refused) == os.path.abspath(options.to):
        raise Stop(USAGE, f"--refused {options.refused}: --to names the same file")
    target = pathlib.Path(options.to)
    if target.is_dir() or not target.parent.is_dir():
        raise Stop(USAGE, f"--to {options.to}: " + ("this is a folder" if target.is_dir() else f"there is no folder {target.parent}"))


def main(argv=None):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # processes share the cores out, see --processes
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = arguments(argv)
    try:
        check(options)
        run(options)
    except Stop as error:
        print(f"tokenize: error: {error.message}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("tokenize: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


def check_packages():
    """All of them at once, before the work: h5py is first used when the tokens are there."""
    missing = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing.append(error.name or name)
        except ImportError as error:  # a library of the system that it lacks, or another package's version
            raise Stop(MACHINE, f"the Python package {name} cannot be loaded: {' '.join(str(error).split())}") from None
    if missing:
        requirements = os.path.join(os.path.dirname(sys.argv[0]), "requirements.txt")
        which = f"package {missing[0]} is" if len(missing) == 1 else f"packages {', '.join(missing)} are"
        raise Stop(MACHINE, f"the Python {which} missing: pip install -r {shlex.quote(requirements)}")


def run(options):
    # only now: --help and a wrong command line need no library
    check_packages()
    from .encoder import Encoder, Settings
    from .output import TokenFile
    from .report import Progress, Report
    start = time.monotonic()
    settings = Settings(options.tokenizer, options.chat_template, options.end_token, options.date or datetime.date.today(), options.format,
                        options.train_on == "completions", options.control_tokens, options.max_length)
    encoder = Encoder(settings)
    announce(encoder, options)
    sizes = [os.path.getsize(path) for path in options.paths]
    processes = options.processes or max(1, min(len(os.sched_getaffinity(0)), 1 + sum(sizes) // BYTES_A_PROCESS))
    report, progress = Report(options.paths, options.skip_bad, options.refused), Progress(sum(sizes))
    attributes = {"sherd.kind": "tokens", "sherd.version": 1, "vocab_size": encoder.model.vocab_size,
                  "tokenizer": options.name or pathlib.Path(options.tokenizer).resolve().name}
    try:
        with TokenFile(options.to, encoder.dtype) as file:
            tokens = 0
            for done in encoded(chunks(options), encoder, processes):
                progress.clear() if done.refused else None
                report.add(done)
                file.add(done.tokens, done.mask, done.lengths, options.validation_file is not None and done.file == len(options.paths) - 1)
                tokens += len(done.tokens)
                progress.show(sum(sizes[:done.file]) + done.position, tokens)
            if not tokens:
                raise Stop(DATA, f"{', '.join(map(str, options.paths))}: no document" + (", all were refused" if report.reasons else ""))
            groups = file.finish(attributes, options.fraction, options.seed)
    finally:
        progress.clear()
        report.close()
    report.summary(groups, encoder.model, time.monotonic() - start)


def announce(encoder, options):
    """The rules in force, before the work begins."""
    from .report import say
    model, template = encoder.model, encoder.template
    if model.end is not None:
        say(f"a text: {model.words(model.prefix) or 'nothing'} before it, {model.words([*model.suffix, model.end])} after it")
    if template:
        say(f"a conversation: as the chat template writes it, nothing added; a turn of the assistant ends in {template.turn_end!r}")
        if not template.ends_turns():
            say("warning: that is no control token, so the model is not taught where to stop")
        if template.asks_date and options.date is None:
            say(f"the chat template writes dates: --date {datetime.date.today()} gives the same file again on another day")


def chunks(options):
    from .sources import read_chunks
    for index, path in enumerate(options.paths):
        yield from read_chunks(path, index, options.separator)


def encoded(source, encoder, processes):
    """Encoded chunks in the order of their source, with no more waiting than the processes need."""
    if processes == 1:
        yield from map(encoder.encode, source)
        return
    with noted_signals() as came:
        # spawned, not forked: the tokenizer's threads and HDF5 do not survive a fork
        pool = concurrent.futures.ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), begin_worker, (encoder.settings,))
        try:
            waiting = collections.deque()
            for chunk in source:
                with masked_signals():
                    waiting.append(pool.submit(work, chunk))
                if len(waiting) > 2 * processes:
                    yield result_of(waiting.popleft(), came)
            while waiting:
                yield result_of(waiting.popleft(), came)
        except concurrent.futures.process.BrokenProcessPool:
            raise Stop(MACHINE, "a worker process was killed: out of memory? fewer --processes need less") from None
        finally:
            pool.shutdown(cancel_futures=True)
    if came:
        raise KeyboardInterrupt


def result_of(future, came):
    while not came:
        if concurrent.futures.wait([future], timeout=0.2).done:
            return future.result()
    raise KeyboardInterrupt


@contextlib.contextmanager
def noted_signals():
    """Signals are kept in a list meanwhile: a KeyboardInterrupt amid the pool's own code may leave a lock of it held, for which its end would
    wait for ever."""
    came = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in STOPPING}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def masked_signals():
    """Workers inherit the mask: one that is interrupted while it starts leaves a traceback."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


STOPPING = {signal.SIGINT, signal.SIGTERM}
WORKER = None


def begin_worker(settings):
    global WORKER
    from .encoder import Encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends the pool
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    WORKER = Encoder(settings)


def work(chunk):
    return WORKER.encode(chunk)
