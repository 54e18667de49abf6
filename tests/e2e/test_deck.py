"""Decks and the command line, from outside: what is printed, and how mistakes end."""
import configparser
import os
import pathlib
import tempfile
import unittest

import support

REQUIRED = "[model]\nweights = w.h5\n[data]\ntokens = t.h5\n"


class Deck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def deck(self, text, name="d.ini"):
        path = self.folder / name
        path.write_bytes(text.encode())
        return path

    def printed(self, path, *more):
        return support.run("train", "--config", path, *more, "--print-config", cwd=self.folder).stdout

    def values(self, text):
        """The printed deck by a foreign INI reader, which leaves the quotes around a value."""
        reader = configparser.ConfigParser(interpolation=None, comment_prefixes=(), inline_comment_prefixes=None, delimiters=("=",))
        reader.optionxform = str
        reader.read_string(text)
        return {f"{section}.{key}": value for section in reader.sections() for key, value in reader[section].items()}

    def refused(self, path, *parts, more=()):
        stderr = support.run("train", "--config", path, *more, "--print-config", expect=2, cwd=self.folder).stderr
        self.assertEqual(stderr.count("\n"), 1, stderr)
        for part in parts:
            self.assertIn(part, stderr)

    def test_values_are_whole(self):
        cases = [("/tmp/run#3", "/tmp/run#3"), ("/tmp/my runs/a=b,c", "/tmp/my runs/a=b,c"), ('"/tmp/a #b"', '"/tmp/a #b"'),
                 ("/tmp/x # third run", "/tmp/x"), ("'it is \"it\"'", 'it is "it"')]
        for given, printed in cases:
            with self.subTest(given):
                text = self.printed(self.deck(f"[run]\ndirectory = {given}\n" + REQUIRED))
                self.assertEqual(self.values(text)["run.directory"], printed)

    def test_command_line_keeps_what_the_shell_gives(self):
        deck = self.deck("[run]\ndirectory = other\n" + REQUIRED)
        for given in ("/tmp/run#3", "/tmp/a b=c,d #e", " lead", "it's \"it\""):
            for arguments in ([f"--run.directory={given}"], ["--run.directory", given]):
                text = self.printed(deck, *arguments)
                self.assertEqual(self.printed(self.deck(text, "again.ini")), text)
        self.assertEqual(self.values(self.printed(deck, "--run.directory=/tmp/run#3"))["run.directory"], "/tmp/run#3")

    def test_windows_decks(self):
        text = "[run]\nsteps = 3 # three\nname = a b\n" + REQUIRED
        self.assertEqual(self.printed(self.deck("\ufeff" + text.replace("\n", "\r\n"))), self.printed(self.deck(text)))

    def test_printed_deck_is_a_fixed_point(self):
        for path in (pathlib.Path(support.ROOT, "inputs/demo.ini"), self.deck("[nccl]\nNCCL_DEBUG_FILE = '/tmp/n #1'\n" + REQUIRED)):
            text = self.printed(path, "--run.epochs=2")
            self.assertEqual(self.printed(self.deck(text, "other.ini")), text)

    def test_name_and_relative_paths(self):
        os.mkdir(self.folder / "decks")
        values = self.values(self.printed(self.deck(REQUIRED, "decks/first.ini")))
        self.assertEqual(values["run.name"], "first")
        self.assertEqual(values["run.directory"], "checkpoints/first")
        self.assertEqual(values["model.weights"], "w.h5")

    def test_mistakes_name_the_place(self):
        self.refused(self.deck("[run]\nsteps = 1\nsteps = 1\n" + REQUIRED), "d.ini:3:", "line 2")
        self.refused(self.deck("[run]\nstpes = 1\n" + REQUIRED), "d.ini:2:", "run.steps")
        self.refused(self.deck("[rnu]\nsteps = 1\n" + REQUIRED), "d.ini:1:", "[run]")
        self.refused(self.deck("[run]\nsteps = 1.5\n" + REQUIRED), "d.ini:2:", "integer")
        self.refused(self.deck("[run]\nsteps = 1\nepochs = 1\n" + REQUIRED), "d.ini:2", "d.ini:3")
        self.refused(self.deck("[run]\ndirectory = a \"b #c\"\n" + REQUIRED), "d.ini:2:", "'#'")
        self.refused(self.deck("[memory]\noffload = optimizer\n" + REQUIRED), "d.ini:2:", "not in this version")
        self.refused(self.deck("[model]\nweights = w\n"), "data.tokens is required")
        self.refused(self.deck(REQUIRED), "--run.stpes", "--run.steps", more=["--run.stpes=3"])
        self.refused(self.deck(REQUIRED), "--run.steps is given twice", more=["--run.steps=3", "--run.steps=3"])
        self.refused(self.folder / "absent.ini", "absent.ini")

    def test_mpirun_passes_the_code_on(self):
        stderr = support.run("train", "--config", self.deck("[run]\nsteps = 0\n" + REQUIRED), ranks=2, expect=2).stderr
        self.assertIn("d.ini:2:", stderr)
        text = support.run("train", "--config", self.deck(REQUIRED), "--print-config", ranks=2).stdout
        self.assertEqual(text.count("[run]"), 1)


class CommandLine(unittest.TestCase):
    def test_help_and_version(self):
        for command in ("train", "eval", "import", "export", "inspect"):
            self.assertIn(command, support.run("--help").stdout)
            self.assertNotEqual(support.run(command, "--help").stdout.strip(), "")
        version = support.run("--version").stdout
        self.assertIn("sherd " + pathlib.Path(support.ROOT, "VERSION").read_text().strip(), version)
        self.assertIn("HDF5", version)

    def test_unknown_commands(self):
        stderr = support.run("trian", expect=2).stderr
        for word in ("trian", "train", "eval", "import", "export", "inspect"):
            self.assertIn(word, stderr)
        self.assertIn("usage", support.run(expect=2).stderr)


if __name__ == "__main__":
    unittest.main()
