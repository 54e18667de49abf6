"""What people see: refusals as they come, a progress bar on a terminal, and the summary."""
import collections
import json
import sys
import time

import numpy as np

from .errors import DATA, MACHINE, Stop

MOST_SHOWN = 20


class Report:
    """Counts over all chunks. `skip`: refused records are counted, and listed in the file `refused`; else the first one ends the run."""

    def __init__(self, paths, skip, refused):
        self.paths, self.skip = paths, skip
        self.records = self.blank = self.targets = self.cut = self.cut_tokens = self.left_out = self.with_control = 0
        self.reasons = collections.Counter()
        self.first = None
        self.shown = 0
        self.list = None
        if refused:
            try:
                self.list = open(refused, "w", encoding="utf-8")
            except OSError as error:
                raise Stop(MACHINE, f"--refused {refused}: {error.strerror}") from None

    def note(self, text):
        """Into the list of refused documents; text None closes it."""
        try:
            if text is None:
                self.list.close()
            else:
                self.list.write(text)
        except OSError as error:
            raise Stop(MACHINE, f"--refused {self.list.name}: {error.strerror}") from None

    def add(self, done):
        for number, record, reason, detail in done.refused:
            where = f"{self.paths[done.file]}:{number}" + (f": record {record}" if record else "")
            told = f"{reason}: {detail}" if detail else reason
            if not self.skip:
                raise Stop(DATA, f"{where}: {told} (--skip-bad leaves such documents out and counts them)")
            self.reasons[reason] += 1
            if self.list:
                place = {"file": str(self.paths[done.file]), "line": number, **({"record": record} if record else {})}
                self.note(json.dumps({**place, "reason": reason, "detail": detail}) + "\n")
            if self.shown < MOST_SHOWN:
                say(f"refused {where}: {told}")
            elif self.shown == MOST_SHOWN:
                say("further refusals are only counted; --refused FILE lists them all")
            self.shown += 1
        self.records += len(done.refused) + len(done.lengths) + done.left_out
        for name in ("blank", "targets", "cut", "cut_tokens", "left_out", "with_control"):
            setattr(self, name, getattr(self, name) + getattr(done, name))
        self.first = self.first or done.first

    def summary(self, groups, model, seconds):
        """The closing lines, on stdout. `groups`: {name: lengths of its documents}."""
        lengths = np.concatenate(list(groups.values()))
        rows = [("records read", f"{self.records:,}" + (f", and {self.blank:,} blank lines" if self.blank else ""))]
        refused = sum(self.reasons.values())
        if refused:
            rows.append(("refused", f"{refused:,}"))
            rows += [(f"  {reason}", f"{count:,}") for reason, count in sorted(self.reasons.items(), key=lambda item: (-item[1], item[0]))]
        if self.left_out:
            rows.append(("left out", f"{self.left_out:,} in which nothing to learn remains after the cut"))
        rows.append(("documents", f"{len(lengths):,}: " + ", ".join(f"{len(some):,} {name}" for name, some in groups.items())))
        total = int(lengths.sum())
        rows.append(("tokens", f"{total:,}"))
        rows.append(("targets", f"{self.targets:,} ({100 * self.targets / total:.1f} %)"))
        at = [int(value) for value in np.percentile(lengths, (0, 10, 50, 90, 99, 100), method="lower")]
        rows.append(("tokens a document", "shortest {}, 10 % {}, median {}, 90 % {}, 99 % {}, longest {}".format(*at)))
        if self.cut:
            rows.append(("cut", f"{self.cut:,} documents, {self.cut_tokens:,} tokens"))
        if self.with_control:
            rows.append(("control tokens", f"{self.with_control:,} texts hold some, taken as plain characters (--control-tokens)"))
        rows.append(("first document", f"begins {model.words(self.first[:3])}, ends {model.words(self.first[-2:])}"))
        rows.append(("time", f"{seconds:.1f} s, {total / max(seconds, 1e-3):,.0f} tokens/s"))
        print("\n".join(f"{name:<18} {value}" for name, value in rows), flush=True)

    def close(self):
        if self.list:
            self.note(None)


class Progress:
    """A bar on stderr where that is a terminal."""

    def __init__(self, total):
        self.total, self.shown, self.start = max(total, 1), 0.0, time.monotonic()
        self.wanted = sys.stderr.isatty()

    def show(self, done, tokens):
        now = time.monotonic()
        if self.wanted and now - self.shown > 0.2:
            self.shown = now
            part = min(done / self.total, 1.0)
            bar = "#" * int(30 * part)
            rate = tokens / (now - self.start) / 1e3
            sys.stderr.write(f"\r[{bar:<30}] {100 * part:3.0f} %  {tokens / 1e6:,.1f} M tokens  {rate:,.0f} k tokens/s ")
            sys.stderr.flush()

    def clear(self):
        if self.wanted:
            sys.stderr.write("\r" + " " * 78 + "\r")
            sys.stderr.flush()


def say(text):
    print(f"tokenize: {text}", file=sys.stderr, flush=True)
