"""Every fixture from outside: a folder is imported, trained and exported; nothing changes on the way that should not."""
import json
import os
import pty
import subprocess
import unittest

import h5py
import numpy as np

import support
from fixture_case import ALL, FixtureCase, as_float, reference

UP = "model.layers.0.mlp.up_proj.weight"


class Families(FixtureCase):
    def test_import_and_export_change_no_bit(self):
        for name in ALL:
            with self.subTest(name):
                folder = support.FIXTURES / name / "hf"
                self.imported(folder, f"{name}.h5")
                self.export(self.dir / f"{name}.h5", name)
                self.assert_same_tensors(support.read_folder(self.dir / name), support.read_folder(folder))
                self.assertEqual((self.dir / name / "config.json").read_bytes(), (folder / "config.json").read_bytes())
                support.run("inspect", self.dir / f"{name}.h5", "--verify")

    def test_folders_train_as_in_pytorch(self):
        for i, name in enumerate(ALL):
            with self.subTest(name):
                numbers, arrays = reference(name)
                steps = self.train(name, support.FIXTURES / name / "hf", run=name, ranks=(None, 2, 3)[i % 3],
                                   strategy=("no_shard", "full_shard", "shard_grad_op")[i % 3])
                for line, loss, norm in zip(steps, numbers["loss"], numbers["grad_norm"], strict=True):
                    self.assertEqual(line["targets"], numbers["T"])
                    self.assertLess(abs(line["loss"] - loss), 3e-6 * loss)
                    self.assertLess(abs(line["grad_norm"] - norm), 2e-5 * norm)
                self.export(self.dir / name / "latest", f"{name}-out", "--dtype", "fp32")
                found = support.read_folder(self.dir / f"{name}-out")
                expected = {key.removeprefix("step3/"): array for key, array in arrays.items() if key.startswith("step3/")}
                self.assertEqual(sorted(found), sorted(expected))
                for key, array in expected.items():
                    self.assertEqual(found[key][0], "F32")
                    self.assertLess(np.abs(found[key][1] - array).max(), 2e-5, key)

    def test_a_step_of_nothing_keeps_every_bit(self):
        for name in ALL:
            with self.subTest(name):
                folder = support.FIXTURES / name / "hf"
                self.train(name, folder, run=name, ranks=2, steps=1, strategy="full_shard", optimizer__learning_rate=0)
                self.export(self.dir / name / "latest", f"{name}-out", "--max-shard-size", "20KB")
                self.assert_same_tensors(support.read_folder(self.dir / f"{name}-out"), support.read_folder(folder))
                self.assertEqual((self.dir / f"{name}-out" / "config.json").read_bytes(), (folder / "config.json").read_bytes())

    def test_folder_file_and_checkpoint_have_the_same_loss(self):
        for name in ("llama_mixed_old", "qwen3_layer_types", "mistral_sliding"):
            with self.subTest(name):
                expected = reference(name)[0]["loss"][0]
                self.imported(support.FIXTURES / name / "hf", f"{name}.h5")
                for source in (support.FIXTURES / name / "hf", self.dir / f"{name}.h5"):
                    for ranks in (None, 3):
                        self.assertLess(abs(self.evaluated(name, source, ranks) - expected), 3e-6 * expected)
                last = self.train(name, self.dir / f"{name}.h5", run=name)[-1]["loss"]
                self.train(name, self.dir / f"{name}.h5", run=f"{name}-two", steps=2)
                found = self.evaluated(name, self.dir / f"{name}-two" / "latest", 2)
                self.assertLess(abs(found - last), 3e-6 * last, "the third step's loss is that of the second step's weights")

    def test_every_shape_of_checkpoint_gives_the_model(self):
        name = "mistral_sliding"
        shapes = [(None, "no_shard", {}), (2, "shard_opt", {}), (4, "hierarchical_shard", {"sharding__node_size": 2}),
                  (3, "full_shard", {"sharding__shares": "2,0,1"}), (5, "hybrid_shard", {"sharding__node_size": 2})]
        for i, (ranks, strategy, keys) in enumerate(shapes):
            with self.subTest(strategy):
                self.train(name, support.FIXTURES / name / "hf", run=f"run{i}", ranks=ranks, strategy=strategy, steps=2, **keys)
                with h5py.File(self.dir / f"run{i}" / "latest" / "manifest.h5") as file:
                    masters = {key: file["parameters"][key][:] for key in file["parameters"]}
                self.export(self.dir / f"run{i}" / "latest", f"out{i}", "--max-shard-size", "50KB")
                self.assert_same_tensors(support.read_folder(self.dir / f"out{i}"),
                                         {key: ("BF16", support.bfloat16_bits(array).reshape(array.shape)) for key, array in masters.items()})
                self.export(self.dir / f"run{i}" / "latest", f"whole{i}", "--dtype", "fp32")
                self.assert_same_tensors(support.read_folder(self.dir / f"whole{i}"), {key: ("F32", a) for key, a in masters.items()})

    def test_a_head_size_of_its_own(self):
        folder = self.hf(fixture="mistral_head_dim")
        self.edit_config(folder, architectures=["LlamaForCausalLM"], model_type="llama")
        shapes = {name: array.shape for name, (_, array) in support.read_folder(folder).items()}
        self.assertEqual(shapes["model.layers.0.self_attn.q_proj.weight"], (24, 28))
        self.assertEqual(shapes["model.layers.0.self_attn.o_proj.weight"], (28, 24))
        numbers, _ = reference("mistral_head_dim")
        steps = self.train("mistral_head_dim", folder, ranks=3, strategy="full_shard")
        for line, loss in zip(steps, numbers["loss"], strict=True):
            self.assertLess(abs(line["loss"] - loss), 3e-6 * loss)


class Types(FixtureCase):
    def edited(self, change, fixture="llama2"):
        folder = self.hf(fixture=fixture)
        tensors = support.read_folder(folder)
        change(tensors)
        support.write_safetensors(folder / "model.safetensors", tensors)
        return folder, tensors

    @staticmethod
    def rounded(dtype, array):
        return ("BF16", support.bfloat16_bits(array).reshape(array.shape)) if dtype == "bf16" else ("F16", array.astype("f2"))

    def test_import_and_export_convert_with_rounding_to_even(self):
        halfway = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65519.0, -65519.0, 2.0**-24, 2.0**-25, 2.0**-25 * 1.5, 1e-40],
                           "f4")

        def change(tensors):
            array = tensors[UP][1].copy()
            array.flat[:len(halfway)] = halfway
            tensors[UP] = ("F32", array)
        folder, tensors = self.edited(change)
        for dtype in ("bf16", "fp16"):
            expected = {name: self.rounded(dtype, array) for name, (_, array) in tensors.items()}
            self.imported(folder, f"{dtype}.h5", "--dtype", dtype)
            self.export(self.dir / f"{dtype}.h5", f"{dtype}-a")
            self.export(folder, f"{dtype}-b", "--dtype", dtype)
            for out in (f"{dtype}-a", f"{dtype}-b"):
                self.assert_same_tensors(support.read_folder(self.dir / out), expected)
                config = json.loads((self.dir / out / "config.json").read_text())
                original = json.loads((folder / "config.json").read_text())
                self.assertEqual(config, {**original, "dtype": {"bf16": "bfloat16", "fp16": "float16"}[dtype]})
        self.export(self.dir / "bf16.h5", "wide", "--dtype", "fp32")
        self.assert_same_tensors(support.read_folder(self.dir / "wide"),
                                 {name: ("F32", as_float("BF16", support.bfloat16_bits(array).reshape(array.shape)))
                                  for name, (_, array) in tensors.items()})

    def test_what_a_type_cannot_hold_is_named(self):
        def change(tensors):
            array = tensors[UP][1].copy()
            array[3, 5] = -65520.0
            tensors[UP] = ("F32", array)
        folder, _ = self.edited(change)
        before = sorted(os.listdir(self.dir))
        for command in ("import", "export"):
            done = support.run(command, "--from", folder, "--to", self.dir / "x", "--dtype", "fp16", expect=4)
            for part in (UP, "[3, 5]", "-65520", "fp16 cannot hold"):
                self.assertIn(part, done.stderr)
            self.assertEqual(sorted(os.listdir(self.dir)), before)
        self.imported(folder, "w.h5", "--dtype", "bf16")

    def test_a_master_that_outgrew_its_type_is_named(self):
        folder, _ = self.edited(lambda t: t.update({"model.norm.weight": ("F16", np.full(24, 65000, "f2"))}), "llama_fp16")
        self.train("llama_fp16", folder, steps=1, optimizer__learning_rate=1000, optimizer__epsilon=1e-8, optimizer__clip_norm=0)
        with h5py.File(self.dir / "run" / "latest" / "manifest.h5") as file:
            self.assertGreater(np.abs(file["parameters"]["model.norm.weight"][:]).max(), 65520)
        done = self.export(self.dir / "run" / "latest", expect=4)
        for part in ("model.norm.weight", "fp16 cannot hold", "--dtype"):
            self.assertIn(part, done.stderr)
        self.export(self.dir / "run" / "latest", "out", "--dtype", "bf16")

    def test_the_config_changes_in_nothing_but_its_type(self):
        folder = self.hf()
        text = ('\ufeff{"note": "say \\"dtype\\": \\"float32\\" {", "inner": {"dtype": "float32", "more": [{"torch_dtype": "float32"}]},\n'
                ' "torch_dtype" :\n "float32", "limit": Infinity, ' + (folder / "config.json").read_text().lstrip()[1:])
        (folder / "config.json").write_text(text)
        self.export(folder, "out", "--dtype", "bf16")
        found = (self.dir / "out" / "config.json").read_text()
        self.assertEqual(found, text.replace(':\n "float32"', ':\n "bfloat16"').replace('"dtype": "float32",\n', '"dtype": "bfloat16",\n'))
        self.assertEqual(found.count("bfloat16"), 2)

    def test_unknown_types_are_refused(self):
        for command in ("import", "export"):
            for name in ("fp8", "float32", "FP16", "int8"):
                done = support.run(command, "--from", self.hf(f"{command}-{name}"), "--to", self.dir / "x", f"--dtype={name}", expect=2)
                self.assertIn("fp32, bf16 and fp16", done.stderr)


class Progress(FixtureCase):
    def test_a_terminal_sees_how_far_import_is(self):
        mine, theirs = pty.openpty()
        command = [str(support.BUILD / "sherd"), "import", "--from", str(self.hf()), "--to", str(self.dir / "w.h5")]
        process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(mine, 4096):
                seen += piece
        except OSError:  # Linux: the other end is closed
            pass
        os.close(mine)
        _, errors = process.communicate()
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn(b"\r\x1b[K7 of 30 tensors", seen)
        self.assertEqual(seen.replace(b"\r\n", b"\n").splitlines()[-1].split(b"\x1b[K")[-1][:8], b"imported", "the last line stands alone")
        self.assertNotIn("tensors\r", self.imported(self.dir / "hf", "again.h5").stdout)


if __name__ == "__main__":
    unittest.main()
