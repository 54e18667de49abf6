"""The token file. Ids go to plain files beside it as they come, and from there into datasets of the right length: those are contiguous,
which sherd reads fastest, and memory stays bounded. The finished file takes its name by a rename; whatever fails leaves nothing."""
import contextlib
import os
import pathlib
import shutil
import tempfile

import numpy as np

from .errors import DATA, MACHINE, Stop

BLOCK_TOKENS = 8 << 20


class TokenFile:
    def __init__(self, path, dtype):
        self.path, self.dtype = pathlib.Path(path), dtype
        self.lengths, self.validation, self.masked = [], [], False
        self.stack = contextlib.ExitStack()
        with self.machine():
            self.folder = pathlib.Path(tempfile.mkdtemp(prefix=f".{self.path.name}.", dir=self.path.parent))
            self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.tokens = self.stack.enter_context(open(self.folder / "tokens", "wb"))
            self.mask = self.stack.enter_context(open(self.folder / "mask", "wb"))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    @contextlib.contextmanager
    def machine(self):
        try:
            yield
        except OSError as error:  # h5py's too
            raise Stop(MACHINE, f"{self.path}: cannot write: {error.strerror or error}") from None

    def add(self, tokens, mask, lengths, validation):
        """Documents one after another; `validation`: they come from a file of validation documents."""
        with self.machine():
            self.tokens.write(tokens.tobytes())
            self.mask.write((np.ones(len(tokens), np.uint8) if mask is None else mask).tobytes())
        self.masked = self.masked or mask is not None
        self.lengths.append(lengths)
        self.validation.append(np.full(len(lengths), validation))

    def finish(self, attributes, fraction, seed):
        """Writes the file, with `fraction` of the training documents as validation. Returns {group: lengths of its documents}."""
        lengths, validation = np.concatenate(self.lengths), np.concatenate(self.validation)
        if fraction:
            validation |= drawn(~validation, fraction, seed)
        if validation.all():
            taken = "the only one" if len(validation) == 1 else f"all {len(validation):,}"
            why = f"--validation {fraction} took {taken}" if fraction else f"{taken} came from the file of --validation"
            raise Stop(DATA, f"{self.path}: not written: no document is left for training: {why}")
        groups = {"train": ~validation, **({"validation": validation} if validation.any() else {})}
        with self.machine():
            self.tokens.close()
            self.mask.close()
            import h5py
            made = self.folder / "made.h5"
            with h5py.File(made, "w") as file:
                file.attrs.update(attributes)
                for name, chosen in groups.items():
                    self.write_group(file.create_group(name), lengths, chosen)
            with open(made, "rb") as file:
                os.fsync(file.fileno())
            os.replace(made, self.path)
        return {name: lengths[chosen] for name, chosen in groups.items()}

    def write_group(self, group, lengths, chosen):
        offsets = np.zeros(int(chosen.sum()) + 1, np.uint64)
        np.cumsum(lengths[chosen], out=offsets[1:], dtype=np.uint64)
        group["doc_offsets"] = offsets
        self.copy(group, "tokens", self.folder / "tokens", self.dtype, lengths, chosen, int(offsets[-1]))
        if self.masked:
            self.copy(group, "loss_mask", self.folder / "mask", np.uint8, lengths, chosen, int(offsets[-1]))

    def copy(self, group, name, source, dtype, lengths, chosen, size):
        """The chosen documents' part of a plain file into a dataset, some million tokens at a time."""
        target, at, first = group.create_dataset(name, (size,), dtype), 0, 0
        ends = np.cumsum(lengths, dtype=np.int64)
        with open(source, "rb") as file:
            while first < len(lengths):
                begin = ends[first - 1] if first else 0
                last = max(first + 1, int(np.searchsorted(ends, begin + BLOCK_TOKENS, side="right")))
                block = np.fromfile(file, dtype, int(ends[last - 1] - begin))
                block = block[np.repeat(chosen[first:last], lengths[first:last])]
                target[at:at + len(block)] = block
                at, first = at + len(block), last


def drawn(candidates, fraction, seed):
    """Which of the candidates become validation documents: the nearest whole number to `fraction` of them, at least one. They are those
    whose hash of (seed, place) is smallest: splitmix64 (Steele, Lea, Flood 2014), the same on every machine."""
    places = np.flatnonzero(candidates)
    count = max(1, round(fraction * len(places))) if len(places) else 0
    with np.errstate(over="ignore"):
        z = mixed(np.uint64(seed % (1 << 64)) + np.uint64(0x9E3779B97F4A7C15))
        z = mixed(z ^ (np.arange(len(places), dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    chosen = np.zeros(len(candidates), bool)
    chosen[places[np.argsort(z, kind="stable")[:count]]] = True
    return chosen


def mixed(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
