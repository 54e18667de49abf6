"""A test case with a scratch folder and the steps that import and export tests share."""
import json
import pathlib
import tempfile
import unittest

import numpy as np

import support


class FolderCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def hf(self, name="hf", fixture="llama2"):
        return support.copy_fixture(fixture, self.dir / name)

    def split(self, folder, shards=3):
        """Cuts model.safetensors into shards with an index, tensor by tensor in turn; returns the index."""
        tensors = support.read_folder(folder)
        (folder / "model.safetensors").unlink()
        files = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
        for i, file in enumerate(files):
            support.write_safetensors(folder / file, dict(list(tensors.items())[i::shards]))
        index = {"metadata": {}, "weight_map": {name: files[i % shards] for i, name in enumerate(tensors)}}
        self.write_index(folder, index)
        return index

    def write_index(self, folder, index):
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))

    def edit_config(self, folder, **keys):
        config = json.loads((folder / "config.json").read_text())
        config.update(keys)
        (folder / "config.json").write_text(json.dumps(config))

    def imported(self, folder, name="w.h5", *more):
        return support.run("import", "--from", folder, "--to", self.dir / name, *more)

    def refused(self, folder, *parts, expect=4):
        """The import must end with `expect`, one line that holds all parts, and leave nothing."""
        before = sorted(self.dir.iterdir())
        done = support.run("import", "--from", folder, "--to", self.dir / "refused.h5", expect=expect)
        errors = [line for line in done.stderr.splitlines() if "notice:" not in line]
        self.assertEqual(len(errors), 1, done.stderr)
        for part in parts:
            self.assertIn(part, errors[0])
        self.assertEqual(sorted(self.dir.iterdir()), before)

    def export(self, source, name="out", *more, expect=0):
        return support.run("export", "--from", source, "--to", self.dir / name, *more, expect=expect)

    def assert_same_tensors(self, found, expected):
        self.assertEqual(sorted(found), sorted(expected))
        for name, (dtype, array) in expected.items():
            self.assertEqual(found[name][0], dtype, name)
            self.assertEqual(found[name][1].shape, array.shape, name)
            self.assertEqual(found[name][1].tobytes(), np.ascontiguousarray(array).tobytes(), name)
