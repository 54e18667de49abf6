"""How things end that cannot go on: a run by Stop, a document by Refused."""

USAGE, MACHINE, DATA = 2, 3, 4  # exit codes, as sherd's (docs/exit-codes.md)


class Stop(Exception):
    """Ends the run with an exit code and one line that says why."""

    def __init__(self, code, message):
        super().__init__(code, message)
        self.code = code
        self.message = message


class Refused(Exception):
    """One document cannot be encoded. `reason` is one of few, for counting; `detail` tells this case, and may be empty."""

    def __init__(self, reason, detail=""):
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self):
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


def excerpt(text, most=40):
    """A text for a message: quoted, on one line, not long."""
    text = str(text)
    return repr(text if len(text) <= most else text[:most] + "...")
