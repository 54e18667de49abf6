"""import, export and inspect, from outside: what goes in comes out, and how bad folders end."""
import json
import os
import resource
import signal
import subprocess
import sys
import time
import unittest

import h5py
import numpy as np

import support
from folder_case import FolderCase

NORM = "model.norm.weight"


class RoundTrip(FolderCase):
    def test_a_folder_comes_back_byte_for_byte(self):
        folder = self.hf()
        self.imported(folder)
        self.export(self.dir / "w.h5")
        for name in ("config.json", "model.safetensors"):
            self.assertEqual((self.dir / "out" / name).read_bytes(), (folder / name).read_bytes(), name)
        self.assertEqual(sorted(os.listdir(self.dir)), ["hf", "out", "w.h5"])

    def test_h5py_sees_the_tensors(self):
        folder = self.hf()
        self.imported(folder)
        expected = support.read_folder(folder)
        with h5py.File(self.dir / "w.h5") as file:
            self.assertEqual(file.attrs["sherd.kind"], "weights")
            self.assertEqual(file.attrs["sherd.version"], 1)
            self.assertEqual(file.attrs["config"], (folder / "config.json").read_text())
            self.assertEqual(sorted(file["model"]), sorted(expected))
            for name, (_, array) in expected.items():
                np.testing.assert_array_equal(file["model"][name][:], array)

    def test_tokenizer_and_licence_ride_along(self):
        story = support.ROOT / "inputs" / "stories260k-hf"
        self.imported(story)
        self.export(self.dir / "w.h5")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "LICENSE"):
            self.assertEqual((self.dir / "out" / name).read_bytes(), (story / name).read_bytes(), name)
        self.assert_same_tensors(support.read_folder(self.dir / "out"), support.read_folder(story))

    def test_each_tensor_keeps_its_own_type(self):
        folder = self.hf()
        tensors = {}
        for i, (name, (_, array)) in enumerate(support.read_folder(folder).items()):
            kind = "F32" if name.endswith("norm.weight") else "F16" if i % 3 == 0 else "BF16"
            stored = support.bfloat16_bits(array) if kind == "BF16" else array.astype("f2") if kind == "F16" else array * np.float32(1.00001)
            tensors[name] = (kind, stored)
        support.write_safetensors(folder / "model.safetensors", tensors)
        said = self.imported(folder).stdout
        for kind, name in (("F32", "fp32"), ("F16", "fp16"), ("BF16", "bf16")):
            self.assertIn(f"{sum(k == kind for k, _ in tensors.values())} {name}", said)
        self.export(self.dir / "w.h5")
        self.assert_same_tensors(support.read_folder(self.dir / "out"), tensors)

    def test_metadata_of_every_kind_is_taken_and_the_export_says_pt(self):
        folder = self.hf()
        tensors = support.read_folder(folder)
        for i, metadata in enumerate((None, {}, {f"key{n}": "x" * n for n in range(200)})):
            support.write_safetensors(folder / "model.safetensors", tensors, metadata)
            self.imported(folder, f"w{i}.h5")
            self.export(self.dir / f"w{i}.h5", f"out{i}")
            header, start = support.read_header(self.dir / f"out{i}" / "model.safetensors")
            self.assertEqual(header["__metadata__"], {"format": "pt"})
            self.assertEqual(start % 8, 0)

    def test_loose_json_is_carried_as_it_stands(self):
        folder = self.hf()
        strict = (folder / "config.json").read_text()
        loose = "\ufeff" + strict.replace("{", '{\n  "time_step_limit": [0.0, Infinity],', 1)
        (folder / "config.json").write_text(loose)
        self.imported(folder)
        self.export(self.dir / "w.h5")
        self.assertEqual((self.dir / "out" / "config.json").read_text(), loose)

    def test_a_long_config_from_h5py_is_read_from_a_dataset(self):
        folder = self.hf()
        self.edit_config(folder, note="x" * 100_000)
        tensors = support.read_folder(folder)
        with h5py.File(self.dir / "w.h5", "w") as file:
            file.attrs["sherd.kind"] = np.bytes_(b"weights")
            file.attrs["sherd.version"] = np.uint8(1)
            file["config"] = (folder / "config.json").read_text()
            for name, (_, array) in tensors.items():
                file[f"model/{name}"] = array
        self.export(self.dir / "w.h5")
        self.assert_same_tensors(support.read_folder(self.dir / "out"), tensors)

    def test_memory_stays_small_beside_a_large_tensor(self):
        folder = self.hf()
        tensors = support.read_folder(folder)
        rows = 2_000_000  # 2 x 192 MB, the last tensors of the file: zeros, as a hole of the file
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors.pop(name)
        path = folder / "model.safetensors"
        support.write_safetensors(path, tensors)
        header, start = support.read_header(path)
        data = path.read_bytes()[start:]
        for i, name in enumerate(("model.embed_tokens.weight", "lm_head.weight")):
            at = len(data) + i * rows * 96
            header[name] = {"dtype": "BF16", "shape": [rows, 48], "data_offsets": [at, at + rows * 96]}
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        os.truncate(path, 8 + len(text) + len(data) + 2 * rows * 96)
        self.edit_config(folder, vocab_size=rows)
        # a small process in between: Linux counts what the parent held before exec as the child's
        watch = ("import resource, subprocess, sys; code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL); "
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss); sys.exit(code)")
        done = subprocess.run([sys.executable, "-c", watch, support.BUILD / "sherd", "import", "--from", folder, "--to", self.dir / "w.h5"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLess(int(done.stdout), 100_000)  # kB


class BadFolders(FolderCase):
    def edited(self, change):
        folder = self.hf()
        tensors = support.read_folder(folder)
        change(tensors)
        support.write_safetensors(folder / "model.safetensors", tensors)
        return folder

    def test_rotary_buffers_are_a_notice(self):
        def change(tensors):
            for layer in range(3):
                tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = ("F32", np.zeros(6, "f4"))
        done = self.imported(self.edited(change))
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn("inv_freq", done.stderr)
        self.export(self.dir / "w.h5")
        self.assertNotIn("inv_freq", str(list(support.read_folder(self.dir / "out"))))

    def test_a_stray_tensor_is_named(self):
        self.refused(self.edited(lambda t: t.update({"model.layers.0.mlp.extra.weight": ("F32", np.zeros(3, "f4"))})),
                     "model.layers.0.mlp.extra.weight")

    def test_a_missing_or_misshapen_tensor_is_named(self):
        self.refused(self.edited(lambda t: t.pop(NORM)), NORM)
        self.setUp()
        self.refused(self.edited(lambda t: t.update({NORM: ("F32", np.zeros(0, "f4"))})), NORM, "[0]", "[48]")

    def test_nan_and_infinity_are_named_with_their_place(self):
        for value, word in ((np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "-infinity")):
            self.setUp()

            def change(tensors):
                array = tensors["model.layers.1.mlp.up_proj.weight"][1].copy()
                array[3, 5] = value
                tensors["model.layers.1.mlp.up_proj.weight"] = ("F32", array)
            self.refused(self.edited(change), "model.layers.1.mlp.up_proj.weight", "[3, 5]", word)

    def test_quantized_folders_get_a_sentence(self):
        q = "model.layers.0.self_attn.q_proj.weight"
        fp8 = {q: ("F8_E4M3", np.zeros((48, 48), "u1")), q + "_scale": ("F32", np.ones(1, "f4"))}
        self.refused(self.edited(lambda t: t.update(fp8)), q, "dequantized first")
        self.setUp()
        self.refused(self.edited(lambda t: t.update({q + "_scale_inv": ("F32", np.ones(1, "f4"))})), q + "_scale_inv", "dequantized first")
        self.setUp()
        folder = self.hf()
        self.edit_config(folder, quantization_config={"quant_method": "fp8"})
        self.refused(folder, "quantization_config")

    def test_other_types_are_named(self):
        self.refused(self.edited(lambda t: t.update({NORM: ("I32", np.ones(48, "i4"))})), NORM, "int32")
        self.setUp()
        self.refused(self.edited(lambda t: t.update({NORM: ("F64", np.ones(48, "f8"))})), NORM, "fp64")

    def test_wrapper_prefixes_are_stripped_in_one_line(self):
        for prefix in ("_orig_mod.", "module."):
            self.setUp()

            def change(tensors):
                for name in list(tensors):
                    tensors[prefix + name] = tensors.pop(name)
            done = self.imported(self.edited(change))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(f"'{prefix}'", done.stderr)
            self.export(self.dir / "w.h5")
            self.assert_same_tensors(support.read_folder(self.dir / "out"), support.read_folder(support.FIXTURES / "llama2" / "hf"))

    def test_rows_that_disagree_with_the_config(self):
        folder = self.hf()
        self.edit_config(folder, vocab_size=125)
        self.refused(folder, "125", "131")

    def test_broken_json(self):
        folder = self.hf()
        text = (folder / "config.json").read_text()
        (folder / "config.json").write_text(text[:200])
        self.refused(folder, "config.json:11:3", "no end")
        (folder / "config.json").write_text(text.replace("{", '{\n  "vocab_size": 131,', 1))
        self.refused(folder, "config.json:", "'vocab_size'", "second time")

    def test_truncated_weights(self):
        folder = self.hf()
        size = (folder / "model.safetensors").stat().st_size
        for keep in (size - 1, size // 2, 100, 7, 0):
            os.truncate(folder / "model.safetensors", keep)
            self.refused(folder, "model.safetensors")

    def test_no_folder_and_no_weights(self):
        self.refused(self.dir / "absent", "absent")
        (self.dir / "hf").mkdir()
        self.refused(self.dir / "hf", "config.json")
        (self.dir / "hf" / "config.json").write_text("{}")
        (self.dir / "hf" / "pytorch_model.bin").write_bytes(b"x")
        self.refused(self.dir / "hf", "pytorch_model.bin", "safetensors")


class Index(FolderCase):
    def test_reads_what_the_index_names_and_says_what_it_ignores(self):
        folder = self.hf()
        expected = support.read_folder(folder)
        self.split(folder)
        other = {name: (dtype, array + 1) for name, (dtype, array) in expected.items()}
        support.write_safetensors(folder / "model.safetensors", other)
        support.write_safetensors(folder / "consolidated.safetensors", other)
        said = self.imported(folder).stderr
        self.assertIn("ignored consolidated.safetensors, model.safetensors", said)
        self.assertIn("model-00003-of-00003.safetensors", said)
        self.export(self.dir / "w.h5")
        self.assert_same_tensors(support.read_folder(self.dir / "out"), expected)

    def test_swapped_entries(self):
        folder = self.hf()
        index = self.split(folder)
        names = list(index["weight_map"])
        first, second = names[0], names[1]
        index["weight_map"][first], index["weight_map"][second] = index["weight_map"][second], index["weight_map"][first]
        self.write_index(folder, index)
        self.refused(folder, "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "it lies in")

    def test_missing_entry_and_missing_file(self):
        folder = self.hf()
        index = self.split(folder)
        file = index["weight_map"].pop(NORM)
        self.write_index(folder, index)
        self.refused(folder, NORM, file)
        index["weight_map"][NORM] = "elsewhere.safetensors"
        self.write_index(folder, index)
        self.refused(folder, NORM, "elsewhere.safetensors", file)

    def test_a_single_file_with_an_index_of_another(self):
        folder = self.hf()
        self.write_index(folder, {"weight_map": {name: "other.safetensors" for name in support.read_folder(folder)}})
        self.refused(folder, "other.safetensors", "it lies in 'model.safetensors'")

    def test_stale_head_of_a_tied_model(self):
        folder = self.dir / "hf"
        folder.mkdir()
        story = support.ROOT / "inputs" / "stories260k-hf"
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_bytes((story / name).read_bytes())
        index = self.split(folder, 2)
        index["weight_map"]["lm_head.weight"] = "model-00001-of-00002.safetensors"
        self.write_index(folder, index)
        self.assertIn("lm_head.weight", self.imported(folder).stderr)


class Targets(FolderCase):
    def test_import_replaces_with_force_only(self):
        folder = self.hf()
        (self.dir / "w.h5").write_text("mine")
        support.run("import", "--from", folder, "--to", self.dir / "w.h5", expect=2)
        self.assertEqual((self.dir / "w.h5").read_text(), "mine")
        self.imported(folder, "w.h5", "--force")
        support.run("inspect", self.dir / "w.h5", "--verify")

    def test_mistakes_on_the_command_line(self):
        folder = self.hf()
        for arguments in (["import"], ["import", "--from", folder], ["import", "--form", folder, "--to", "x"], ["export", "--to", "x"],
                          ["import", "--from", folder, "--to", self.dir], ["inspect"], ["inspect", "a", "b"],
                          ["export", "--from", folder, "--to", self.dir / "x", "--max-shard-size", "huge"],
                          ["export", "--from", folder, "--to", self.dir / "x", "--max-shard-size", "0"]):
            support.run(*arguments, expect=2)
        for command in ("import", "export", "inspect"):
            self.assertIn("usage: sherd " + command, support.run(command, "--help").stdout)

    def test_import_replaces_no_device_and_no_part_of_its_source(self):
        folder = self.hf()
        before = (folder / "model.safetensors").read_bytes()
        pipe = self.dir / "pipe"
        os.mkfifo(pipe)
        self.assertIn("no regular file", support.run("import", "--from", folder, "--to", pipe, "--force", expect=2).stderr)
        self.assertTrue(pipe.is_fifo())
        done = support.run("import", "--from", folder, "--to", folder / "model.safetensors", "--force", expect=2)
        self.assertIn("a part of the folder that is imported", done.stderr)
        self.assertEqual((folder / "model.safetensors").read_bytes(), before)

    def test_one_process_is_enough(self):
        """Under mpirun each rank would do it all again; the same is said by each."""
        for command in (["import", "--from", self.hf(), "--to", self.dir / "w.h5"], ["export", "--from", self.dir / "hf", "--to", self.dir / "x"]):
            self.assertIn(f"{command[0]} is one process's work, 2 were started", support.run(*command, ranks=2, expect=2).stderr)
        self.assertEqual(os.listdir(self.dir), ["hf"])

    def test_import_onto_a_full_disk_leaves_nothing(self):
        folder = self.hf()
        command = [str(support.BUILD / "sherd"), "import", "--from", str(folder), "--to", str(self.dir / "w.h5")]

        def limit():  # SIGXFSZ ignored: a write past the limit fails with EFBIG, as one on a full disk with ENOSPC
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit)
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("File too large", done.stderr)
        for word in support.FORBIDDEN + ("infinite loop",):
            self.assertNotIn(word, done.stderr)
        self.assertEqual(os.listdir(self.dir), ["hf"])


class ExportFolders(FolderCase):
    def setUp(self):
        super().setUp()
        self.imported(self.hf())
        self.source = self.dir / "w.h5"
        self.tensors = support.read_folder(self.dir / "hf")

    def test_shards_keep_the_limit_and_the_index_adds_up(self):
        self.export(self.source, "out", "--max-shard-size", "40KB")
        out = self.dir / "out"
        index = json.loads((out / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"]["total_size"], sum(array.nbytes for _, array in self.tensors.values()))
        self.assertEqual(set(index["weight_map"]), set(self.tensors))
        for file in set(index["weight_map"].values()):
            self.assertLessEqual(sum(a.nbytes for _, a in support.read_safetensors(out / file).values()), 40_000)
        self.assert_same_tensors(support.read_folder(out), self.tensors)
        self.assert_same_tensors({n: v for f in out.glob("*.safetensors") for n, v in support.read_safetensors(f).items()}, self.tensors)

    def test_a_large_tensor_has_a_file_of_its_own(self):
        self.export(self.source, "out", "--max-shard-size", "10KiB")
        for file in (self.dir / "out").glob("*.safetensors"):
            arrays = [array.nbytes for _, array in support.read_safetensors(file).values()]
            self.assertTrue(len(arrays) == 1 or sum(arrays) <= 10_240, arrays)
        self.assert_same_tensors(support.read_folder(self.dir / "out"), self.tensors)

    def test_a_used_folder_is_replaced_as_a_whole(self):
        out = self.dir / "out"
        self.export(self.source, "out", "--max-shard-size", "100KB")
        (out / "README.md").write_text("mine")
        (out / "pytorch_model.bin").write_bytes(b"foreign")
        (out / "sub").mkdir()
        (out / "sub" / "notes").write_text("deep")
        before = sorted(os.listdir(out))
        self.export(self.source, "out", expect=2)
        self.assertEqual(sorted(os.listdir(out)), before)
        for more, weights in ((["--max-shard-size", "5GB"], 1), (["--max-shard-size", "100KB"], 4), ([], 1)):
            self.export(self.source, "out", "--force", *more)
            self.assertEqual(len(list(out.glob("*.safetensors"))), weights)
            self.assertEqual((out / "model.safetensors.index.json").exists(), weights > 1)
            self.assert_same_tensors(support.read_folder(out), self.tensors)
        self.assertEqual((out / "README.md").read_text(), "mine")
        self.assertEqual((out / "pytorch_model.bin").read_bytes(), b"foreign")
        self.assertEqual((out / "sub" / "notes").read_text(), "deep")
        self.assertEqual([n for n in os.listdir(self.dir) if n.startswith(".")], [])

    def test_an_empty_folder_is_fine_and_a_file_is_not(self):
        (self.dir / "out").mkdir()
        self.export(self.source)
        self.assert_same_tensors(support.read_folder(self.dir / "out"), self.tensors)
        (self.dir / "file").write_text("x")
        self.export(self.source, "file", expect=2)
        self.export(self.source, "file", "--force", expect=2)
        self.export(self.source, "none/out", expect=4)

    def test_a_folder_may_be_written_over_its_own_source(self):
        self.export(self.dir / "hf", "hf", "--force", "--max-shard-size", "100KB")
        self.assert_same_tensors(support.read_folder(self.dir / "hf"), self.tensors)

    def test_a_kill_leaves_all_old_or_all_new(self):
        out = self.dir / "out"
        self.export(self.source, "out", "--max-shard-size", "30KB")
        changed = self.hf("changed")
        new = {name: (dtype, array + np.float32(1)) for name, (dtype, array) in self.tensors.items()}
        support.write_safetensors(changed / "model.safetensors", new)
        seen = set()
        for i in range(30):
            source = changed if i % 2 == 0 else self.dir / "hf"
            process = subprocess.Popen([str(support.BUILD / "sherd"), "export", "--from", str(source), "--to", str(out), "--force",
                                        "--max-shard-size", "30KB"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.004 * (i % 15))
            process.kill()
            seen.add(process.wait())
            found = support.read_folder(out)
            is_new = found[NORM][1][0] == new[NORM][1][0]
            self.assert_same_tensors(found, new if is_new else self.tensors)
        self.assertIn(-signal.SIGKILL, seen)
        self.export(self.source, "out", "--force")  # what the killed ones had begun is gone then
        self.assertEqual([name for name in os.listdir(self.dir) if name.startswith(".")], [])

    def test_what_another_process_has_begun_stays(self):
        begun = self.dir / f".out.tmp-{os.uname().nodename}-{os.getpid()}"
        begun.mkdir()
        self.export(self.source)
        self.assertTrue(begun.exists())

    def test_the_directory_of_a_run_is_no_target(self):
        for name in ("metrics.jsonl", "step-00000004", "manifest.h5"):
            folder = self.dir / f"run with {name}"
            folder.mkdir()
            (folder / name).write_text("")
            self.assertIn("the directory of a run or a checkpoint", self.export(self.source, folder.name, "--force", expect=2).stderr)
            self.assertEqual(os.listdir(folder), [name])


class Inspect(FolderCase):
    def test_weights_and_folders(self):
        self.imported(self.hf())
        for path in (self.dir / "w.h5", self.dir / "hf"):
            text = support.run("inspect", path, "--verify").stdout
            for part in ("LlamaForCausalLM", "model.layers.2.mlp.down_proj.weight", "[48, 104]", "fp32", "85488 parameters", "verified"):
                self.assertIn(part, text)

    def test_verify_finds_what_is_not_finite(self):
        self.imported(self.hf())
        with h5py.File(self.dir / "w.h5", "a") as file:
            file["model"][NORM][7] = np.nan
        support.run("inspect", self.dir / "w.h5")
        self.assertIn(NORM, support.run("inspect", self.dir / "w.h5", "--verify", expect=4).stderr)

    def test_token_files(self):
        tokens = support.read_safetensors(support.FIXTURES / "stories_genesis" / "tokens.safetensors")
        with h5py.File(self.dir / "t.h5", "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "vocab_size": 512, "tokenizer": "stories260k"})
            for name, (_, array) in tokens.items():
                file.create_dataset(name, data=array)
        text = support.run("inspect", self.dir / "t.h5").stdout
        offsets = tokens["train/doc_offsets"][1].astype(int)
        for part in ("1400 documents", f"{offsets[-1]} tokens", f"longest document {np.diff(offsets).max()} tokens", "uint16", "contiguous",
                     "133 documents", "stories260k"):
            self.assertIn(part, text)

    def test_other_files(self):
        (self.dir / "text").write_text("hello, this is no HDF5 file")
        h5py.File(self.dir / "plain.h5", "w").close()
        for name, part in (("text", "no HDF5"), ("plain.h5", "sherd.kind"), ("absent", "absent")):
            self.assertIn(part, support.run("inspect", self.dir / name, expect=4).stderr)


if __name__ == "__main__":
    unittest.main()
