"""Faults that users of other programs met: rebuilt data, files held by others, mixed types, huge chunks, foreign vocabularies."""
import json
import os
import re
import shutil
import time
import unittest

import h5py
import numpy as np

import support
from job_case import VOCABULARY, JobCase, documents, strict


class RebuiltData(JobCase):
    """The data file is known by its content: neither path, nor size, nor time."""

    def setUp(self):
        super().setUp()
        self.docs = documents(12)
        self.job(run__steps=8, run__stop_step=3, batch__sequences=1)
        self.first = self.metrics("start")

    def resume(self, *more, expect=0, **keys):
        return self.job("train", *more, expect=expect, run__steps=8, run__stop_step=4, batch__sequences=1, **keys)

    def test_another_order_of_the_same_size(self):
        size = self.tokens.stat().st_size
        times = self.tokens.stat()
        self.write_tokens(train=self.docs[:2] + [self.docs[3], self.docs[2]] + self.docs[4:])
        os.utime(self.tokens, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.assertEqual(self.tokens.stat().st_size, size)
        _, err = self.resume(expect=2)
        self.assertRegex(err, r"data\.tokens, group train: content [0-9a-f]{32} -> [0-9a-f]{32}")
        self.assertIn("--allow-changes", err)
        self.assertEqual(len(self.metrics("step")), 3)
        _, err = self.resume("--allow-changes")
        self.assertRegex(err, r"data\.tokens, group train: content [0-9a-f]{32} -> [0-9a-f]{32}")
        self.assertEqual(len(self.metrics("step")), 4)

    def test_more_documents(self):
        self.write_tokens(train=documents(17))
        _, err = self.resume(expect=2)
        self.assertIn("data.tokens, group train", err)

    def test_another_mask_only(self):
        n = sum(map(len, self.docs))
        self.edit(self.tokens, lambda f: f.create_dataset("train/loss_mask", data=np.r_[np.zeros(n // 2, "u1"), np.ones(n - n // 2, "u1")]))
        _, err = self.resume(expect=2)
        self.assertIn("data.tokens, group train", err)

    def test_another_validation_group_is_a_note(self):
        self.write_tokens(validation=documents(3, 99))
        _, err = self.resume()
        self.assertRegex(err, r"notice: data\.tokens: the validation group changed .* [0-9a-f]{32} -> [0-9a-f]{32}")

    def test_a_copy_elsewhere_in_another_layout(self):
        copy = self.dir / "copy.h5"
        with h5py.File(self.tokens) as old, h5py.File(copy, "w") as new:
            new.attrs.update(old.attrs)
            for group in ("train", "validation"):
                new.create_dataset(f"{group}/tokens", data=old[f"{group}/tokens"][:].astype("u4"), chunks=(7,), compression="gzip")
                new[f"{group}/doc_offsets"] = old[f"{group}/doc_offsets"][:]
                new[f"{group}/loss_mask"] = np.ones(old[f"{group}/tokens"].shape, "u1")
        os.utime(copy, (1, 1))
        self.tokens.unlink()
        out, err = self.resume(data__tokens=copy)
        self.assertIn("after step 3", out)
        self.assertNotIn("content", err)


class HeldFiles(JobCase):
    """HDF5 locks files; a notebook that holds one open, or looks into a running job, does not matter."""

    def test_inputs_that_another_program_holds(self):
        for locking in ("TRUE", "FALSE", None):
            env = {key: value for key, value in os.environ.items() if key != "HDF5_USE_FILE_LOCKING"}
            if locking:
                env["HDF5_USE_FILE_LOCKING"] = locking
            with h5py.File(self.tokens, "a"), h5py.File(self.weights, "a"):
                line = self.arguments(run__directory=self.dir / f"run-{locking}")
                self.ended(self.start(line, env=env))
                self.ended(self.start(self.arguments("eval"), env=env))

    def test_looking_into_a_running_job(self):
        line = self.arguments(run__steps=90, checkpoint__every=3, run__log_every=1000, checkpoint__keep=3)
        job = self.start(line)
        looks = 0
        while job.poll() is None:
            latest = self.run_dir / "latest"
            if not (latest / "manifest.h5").exists():
                continue
            try:
                with h5py.File(latest / "manifest.h5") as file:
                    held = file["parameters/model.norm.weight"]
                    time.sleep(0.01)
                    values = held[:]
                looks += bool(np.isfinite(values).all())
            except OSError:
                continue  # pruned between the two looks
            if looks % 5 == 1:
                done = self.start([support.BUILD / "sherd", "inspect", latest.resolve(), "--verify"])
                _, err = done.communicate(timeout=60)
                self.assertTrue(done.returncode == 0 or "damaged or not there" in err or "does not exist" in err or "no such checkpoint" in err, err)
        self.ended(job)
        self.assertGreater(looks, 5)
        self.assertEqual(len(self.metrics("step")), 90)
        self.assertEqual(len(self.sets()), 3)


class Vocabularies(JobCase):
    def test_the_file_names_another_size_than_the_model(self):
        for size, docs in ((120, documents(12, vocabulary=120)), (140, documents(12))):
            self.write_tokens(train=docs, validation=docs[:2], vocabulary=size)
            _, err = self.job("train", "--validate")
            self.assertRegex(err, rf"notice: .*vocab_size is {size}.* {VOCABULARY} rows; nothing is resized")
            self.job("eval")
        docs[6][2] = VOCABULARY
        self.write_tokens(train=docs, vocabulary=140)
        at = sum(map(len, docs[:6])) + 2
        self.refused(self.tokens, "train/tokens", f"index {at}", f"token id {VOCABULARY}", f"less than {VOCABULARY}")
        docs = documents(12, vocabulary=120)
        docs[6][2] = 120
        self.write_tokens(train=docs, validation=docs[:2], vocabulary=120)
        self.refused(self.tokens, f"index {at}", "token id 120", "vocab_size")

    def test_the_checkpoint_keeps_every_row(self):
        self.write_tokens(train=documents(12, vocabulary=100), validation=documents(2, vocabulary=100), vocabulary=100)
        self.job()
        with h5py.File(self.run_dir / "latest" / "manifest.h5") as file:
            self.assertEqual(file["parameters/model.embed_tokens.weight"].shape, (VOCABULARY, 48))


class LongDocuments(JobCase):
    def setUp(self):
        super().setUp()
        self.write_tokens(train=[*documents(6), *documents(2, 5, shortest=70)])  # the model has 64 positions

    def test_past_the_positions_of_the_model(self):
        for keys in ({}, {"data__max_sequence": 4096}):
            for more in ([], ["--validate"]):
                _, err = self.job("train", *more, run__directory=self.dir / f"run-{len(keys)}", **keys)
                self.assertRegex(err, r"warning: .*train.* 2 documents are longer than .*max_position_embeddings = 64")

    def test_cut_and_counted(self):
        docs = [*documents(6), *documents(2, 5, shortest=70)]
        left_out = sum(len(d) - 64 for d in docs if len(d) > 64)
        for more in ([], ["--validate"]):
            _, err = self.job("train", *more, data__max_sequence=64, batch__sequences=8, run__steps=1)
            self.assertRegex(err, rf"notice: .*train.* 2 documents .*max_sequence = 64 and were cut; {left_out} tokens")
            self.assertNotIn("max_position_embeddings", err)
        self.assertEqual(self.metrics("step")[0]["tokens"], sum(min(len(d), 64) for d in docs))


class Loss(JobCase):
    def test_a_perplexity_beyond_double(self):
        self.write_weights(change=lambda a: a["lm_head.weight"].__imul__(np.float32(1e4)))
        out, _ = self.job("eval", precision__compute="fp32")
        result = strict(out.splitlines()[-1])
        self.assertGreater(result["loss"], 709.8)
        self.assertIn(result["perplexity"], (None, "inf"))
        self.job(run__steps=1, **{"precision.compute": "fp32", "optimizer.learning_rate": 0})
        for line in self.metrics("validation"):
            self.assertIn(line["perplexity"], (None, "inf"))


class MixedTypes(JobCase):
    """Each tensor keeps the type that it was imported with, through training and back."""

    def setUp(self):
        super().setUp()
        self.hf = self.dir / "hf"
        shutil.copytree(support.ROOT / "inputs" / "stories260k-hf", self.hf, copy_function=shutil.copyfile)
        config = json.loads((self.hf / "config.json").read_text())
        config.pop("torch_dtype")
        (self.hf / "config.json").write_text(json.dumps(config))
        self.tensors = {}
        for name, (_, array) in support.read_folder(self.hf).items():
            if name.endswith("norm.weight"):
                self.tensors[name] = ("F32", array * np.float32(1 + 2**-20))  # bfloat16 holds 8 bits
            else:
                self.tensors[name] = ("BF16", support.bfloat16_bits(array))
        support.write_safetensors(self.hf / "model.safetensors", self.tensors)
        support.run("import", "--from", self.hf, "--to", self.weights, "--force")
        self.write_tokens(train=documents(12, vocabulary=512), validation=documents(3, vocabulary=512), vocabulary=512)

    def same(self, folder):
        found = support.read_folder(folder)
        self.assertEqual(sorted(found), sorted(self.tensors))
        for name, (dtype, array) in self.tensors.items():
            self.assertEqual(found[name][0], dtype, name)
            self.assertEqual(found[name][1].tobytes(), array.tobytes(), name)

    def test_a_step_at_rate_zero_changes_nothing(self):
        norms = sum(name.endswith("norm.weight") for name in self.tensors)
        out, _ = self.job(run__steps=1, optimizer__learning_rate=0, ranks=2)
        self.assertIn(f"{len(self.tensors) - norms} bf16", out)
        self.assertIn(f"{norms} fp32", out)
        with h5py.File(self.run_dir / "latest" / "manifest.h5") as file:
            for name, (dtype, array) in self.tensors.items():
                stored = array if dtype == "F32" else (array.astype("u4") << 16).view("f4")
                np.testing.assert_array_equal(file["parameters"][name][:], stored)
        support.run("export", "--from", self.run_dir / "latest", "--to", self.dir / "out")
        self.same(self.dir / "out")
        self.assertEqual((self.dir / "out" / "config.json").read_bytes(), (self.hf / "config.json").read_bytes())
        self.assertTrue((self.dir / "out" / "tokenizer.json").exists())

    def test_a_folder_and_its_import_train_alike(self):
        steps = []
        for weights in (self.hf, self.weights):
            self.run_dir = self.dir / f"run-{weights.name}"
            self.job(model__weights=weights)
            steps.append([line["loss"] for line in self.metrics("step")])
        self.assertEqual(*steps)

    def test_exports_before_and_after_training_in_one_folder(self):
        out = self.dir / "out"
        support.run("export", "--from", self.weights, "--to", out, "--max-shard-size", "100KB")
        (out / "README.md").write_text("mine")
        self.assertTrue((out / "model.safetensors.index.json").exists())
        self.job()
        first = self.metrics("validation")[0]["loss"]
        last = self.metrics("validation")[-1]["loss"]
        support.run("export", "--from", self.run_dir, "--to", out, "--force")
        self.assertEqual(sorted(name for name in os.listdir(out) if "safetensors" in name), ["model.safetensors"])
        self.assertEqual((out / "README.md").read_text(), "mine")
        text, _ = self.job("eval", model__weights=out, precision__compute="fp32")
        exported = strict(text.splitlines()[-1])["loss"]
        self.assertNotEqual(first, last)
        self.assertLess(abs(exported - last), 0.1 * abs(first - last) + 1e-2)
        support.run("export", "--from", self.weights, "--to", out, "--force", "--max-shard-size", "100KB")
        self.assertFalse((out / "model.safetensors").exists())
        self.same(out)


class OldFolders(JobCase):
    def test_rotary_frequencies_in_the_folder_are_never_used(self):
        plain = strict(self.job("eval", precision__compute="fp32")[0].splitlines()[-1])
        folder = support.copy_fixture("llama2", self.dir / "hf")
        good = support.read_folder(folder)
        for values in (10000.0 ** (-np.arange(0, 12, 2) / 12), np.zeros(6)):
            tensors = dict(good)
            for layer in range(3):
                tensors[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = ("F32", values.astype("f4"))
            support.write_safetensors(folder / "model.safetensors", tensors)
            out, err = self.job("eval", model__weights=folder, precision__compute="fp32")
            self.assertIn("inv_freq", err)
            self.assertEqual(strict(out.splitlines()[-1]), plain)


class LargeChunks(JobCase):
    """Random documents out of one huge compressed chunk: the chunk is not decompressed once per document."""

    def write_chunked(self, path, n, chunk, **keys):
        ids = np.random.default_rng(3).integers(0, VOCABULARY, n).astype("u2")
        with h5py.File(path, "w") as file:
            file.attrs.update({"sherd.kind": "tokens", "sherd.version": 1, "vocab_size": VOCABULARY, "tokenizer": ""})
            file.create_dataset("train/tokens", data=ids, chunks=chunk and (chunk,), **keys)
            file["train/doc_offsets"] = np.arange(0, n + 1, 50, dtype="u8")

    def test_two_million_tokens_in_one_chunk(self):
        n = 2_000_000
        losses, data = [], {}
        for name, chunk, keys in (("plain", None, {}), ("gzip", n, {"compression": "gzip", "compression_opts": 1})):
            path = self.dir / f"{name}.h5"
            self.write_chunked(path, n, chunk, **keys)
            self.run_dir = self.dir / name
            out, _ = self.job(data__tokens=path, run__steps=100, batch__sequences=8, run__log_every=1000, run__directory=self.run_dir)
            losses.append([line["loss"] for line in self.metrics("step")])
            data[name] = float(re.search(r"^\s*data\s+([\d.]+)", out, re.M).group(1))
        self.assertEqual(*losses)
        start = time.monotonic()
        with h5py.File(self.dir / "gzip.h5") as file:
            self.assertEqual(file["train/tokens"][:].shape, (n,))
        once = time.monotonic() - start
        self.assertLess(data["gzip"], data["plain"] + 20 * once, (data, once))  # 800 documents were read


if __name__ == "__main__":
    unittest.main()
