"""Bad weights, tokens and decks: train and eval end with the exit code and the words that name the culprit, on one rank and on several."""
import os
import unittest

import h5py
import numpy as np

import support
from job_case import JobCase, documents

UP = "model.layers.1.mlp.up_proj.weight"
NORM = "model.norm.weight"


class Files(JobCase):
    def test_missing(self):
        for key in ("model__weights", "data__tokens"):
            self.refused("absent.h5", "does not exist", **{key: self.dir / "absent.h5"})
            self.refused("absent.h5", "does not exist", command="eval", **{key: self.dir / "absent.h5"})
        self.refused("absent.h5", "rank 0", ranks=3, model__weights=self.dir / "absent.h5")

    def test_not_hdf5(self):
        (self.dir / "text.h5").write_text("no HDF5 here\n" * 100)
        (self.dir / "empty.h5").write_bytes(b"")
        for name in ("text.h5", "empty.h5"):
            self.refused(name, "HDF5", model__weights=self.dir / name)
            self.refused(name, "HDF5", data__tokens=self.dir / name)
        self.refused("a folder", data__tokens=self.dir)

    def test_truncated(self):
        for path in (self.weights, self.tokens):
            whole = path.read_bytes()
            for length in (len(whole) - 1, len(whole) * 2 // 3, 2048, 96, 8):
                path.write_bytes(whole[:length])
                self.refused(path)
            path.write_bytes(whole)
        self.job("train", "--validate")

    def test_wrong_kind_or_version(self):
        self.refused(self.tokens, "weights", "tokens", model__weights=self.tokens)
        self.refused(self.weights, "weights", "tokens", data__tokens=self.weights)
        for path in (self.weights, self.tokens):
            self.edit(path, lambda f: f.attrs.update({"sherd.version": 2}))
            self.refused(path, "sherd.version", "2")
            self.edit(path, lambda f: f.attrs.__delitem__("sherd.version"))
            self.refused(path, "sherd.version")
            self.edit(path, lambda f: f.attrs.update({"sherd.version": 1}))
            self.edit(path, lambda f: f.attrs.__delitem__("sherd.kind"))
            self.refused(path, "sherd.kind")
            self.edit(path, lambda f: f.attrs.update({"sherd.kind": path is self.weights and "weights" or "tokens"}))


class Tokens(JobCase):
    def test_ids_past_the_model(self):
        for group, command in (("train", "train"), ("validation", "train"), ("validation", "eval")):
            self.write_tokens()

            def change(file):
                file.attrs["vocab_size"] = 140
                file[f"{group}/tokens"][7] = 131
            self.edit(self.tokens, change)
            self.refused(self.tokens, f"{group}/tokens", "index 7", "token id 131", "less than 131", command=command)
        self.refused(self.tokens, "validation/tokens", "token id 131", "rank 0", ranks=3)

    def replace(self, dataset, values, dtype="u8"):
        def change(file):
            if dataset in file:
                del file[dataset]
            file[dataset] = np.asarray(values).astype(dtype)
        self.write_tokens()
        self.edit(self.tokens, change)

    def test_offsets(self):
        self.write_tokens()
        with h5py.File(self.tokens) as file:
            good, n = file["train/doc_offsets"][:].astype(int), file["train/tokens"].shape[0]
        for at, value, parts in ((0, 1, ("index 0", "offset 1", "expected 0")), (5, good[4] - 1, ("index 5", f"after {good[4]}")),
                                 (5, good[4], ("index 5", "document 4", "no token")), (12, n + 1, ("index 12", f"{n + 1}", f"{n}")),
                                 (12, n - 1, ("index 12", f"{n - 1}", f"{n}")), (3, 2**63, ("index 3", str(2**63)))):
            offsets = list(map(int, good))
            offsets[at] = int(value)
            self.replace("train/doc_offsets", np.array(offsets, "u8"))
            self.refused(self.tokens, "train/doc_offsets", *parts)
        self.replace("train/doc_offsets", good, "f8")
        self.refused(self.tokens, "train/doc_offsets", "uint64")
        self.replace("train/doc_offsets", good[:1])
        self.refused(self.tokens, "train/doc_offsets")

    def test_masks(self):
        with h5py.File(self.tokens) as file:
            n = file["train/tokens"].shape[0]
        self.replace("train/loss_mask", np.ones(n - 1), "u1")
        self.refused(self.tokens, "train/loss_mask", n - 1, n)
        self.replace("train/loss_mask", np.full(n, 2), "u1")
        self.refused(self.tokens, "train/loss_mask", "index 0", "value 2")
        self.replace("train/loss_mask", np.ones(n), "f4")
        self.refused(self.tokens, "train/loss_mask", "uint8")
        self.replace("train/loss_mask", np.zeros(n), "u1")
        self.refused(self.tokens, "train", "no target")

    def test_types_and_groups(self):
        with h5py.File(self.tokens) as file:
            ids = file["train/tokens"][:]
        self.replace("train/tokens", ids, "i8")
        self.refused(self.tokens, "train/tokens", "uint16 or uint32")
        self.replace("train/tokens", ids, "f4")
        self.refused(self.tokens, "train/tokens", "uint16 or uint32")
        self.replace("train/tokens", np.stack([ids, ids]), "u2")
        self.refused(self.tokens, "train/tokens")
        for gone in ("train", "train/tokens", "train/doc_offsets"):
            self.write_tokens()
            self.edit(self.tokens, lambda f: f.__delitem__(gone))
            self.refused(self.tokens, gone)
        self.write_tokens()
        self.edit(self.tokens, lambda f: f.__delitem__("validation"))
        self.refused(self.tokens, "validation", command="eval")
        self.job()  # training can do without

    def test_a_document_longer_than_a_micro_batch(self):
        self.refused(self.tokens, "document 11", "16 tokens", "at least 16", "max_sequence", batch__micro_tokens=15, expect=2)
        self.refused("document 11", "at least 16", batch__micro_tokens="15,9,8", expect=2, ranks=3)
        self.job("train", "--validate", ranks=3, batch__micro_tokens="15,16,8")
        self.job("train", "--validate", batch__micro_tokens=15, data__max_sequence=15)


class Weights(JobCase):
    def changed(self, change=None, **config):
        self.write_weights(change=change, **config)

    def test_parameters_that_do_not_fit(self):
        self.changed(lambda a: a.pop(UP))
        self.refused(self.weights, UP)
        self.refused(self.weights, UP, command="eval")
        self.changed(lambda a: a.update({"model.layers.7.extra.weight": np.ones(3, "f4")}))
        self.refused(self.weights, "model.layers.7.extra.weight")
        self.changed(lambda a: a.update({UP: a[UP][:-1]}))
        self.refused(self.weights, UP, "[103, 48]", "[104, 48]", ranks=3)
        self.changed(lambda a: a.update({NORM: np.ones(48, "i4")}))
        self.refused(self.weights, NORM, "int32")
        self.changed(lambda a: a.update({NORM: np.ones(48, "f8")}))
        self.refused(self.weights, NORM, "fp64")
        self.changed(vocab_size=125)
        self.refused(self.weights, "125", "131")

    def test_values_that_are_not_finite(self):
        for value, word in ((np.nan, "nan"), (np.inf, "inf")):
            def change(arrays):
                arrays[UP][3, 5] = value
            self.changed(change)
            for command, ranks in (("train", None), ("train", 3), ("eval", None)):
                self.refused(self.weights, UP, 3 * 48 + 5, word, "finite", command=command, ranks=ranks)
        self.assertFalse((self.run_dir / "metrics.jsonl").exists())

    def test_config(self):
        for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            self.changed(**{key: None})
            self.refused(self.weights, key)
        self.changed(architectures=None, model_type=None)
        self.refused(self.weights, "architectures", "model_type")
        self.changed(architectures=["BertForMaskedLM"])
        self.refused(self.weights, "BertForMaskedLM", "LlamaForCausalLM")
        self.changed(rope_parameters={"rope_type": "longrope", "factor": 4.0, "rope_theta": 10000.0})
        self.refused(self.weights, "rope_type", "longrope")
        self.changed(num_attention_heads=0)
        self.refused(self.weights, "num_attention_heads", "0")
        self.changed(num_key_value_heads=3)
        self.refused(self.weights, "num_key_value_heads", "4", "3")
        self.changed(head_dim=7)
        self.refused(self.weights, "head_dim", "7")
        self.changed()
        self.edit(self.weights, lambda f: f.attrs.update({"config": "{\"vocab_size\": 131,"}))
        self.refused(self.weights, ":1:")
        self.edit(self.weights, lambda f: f.attrs.__delitem__("config"))
        self.refused(self.weights, "config")

    def test_a_folder_without_weights(self):
        (self.dir / "hf").mkdir()
        self.refused("hf", "config.json", model__weights=self.dir / "hf")


class Keys(JobCase):
    def test_unknown_keys_and_wrong_values(self):
        for keys, parts in (({"run__stpes": 3}, ("run.stpes", "run.steps")), ({"run__steps": "many"}, ("run.steps", "many")),
                            ({"batch__sequences": -4}, ("batch.sequences", "-4")), ({"data__shuffle": "maybe"}, ("data.shuffle", "maybe")),
                            ({"optimizer__beta1": 1.5}, ("optimizer.beta1", "1.5")), ({"optimizer__schedule": "step"}, ("cosine", "step")),
                            ({"batch__micro_tokens": "8,8"}, ("batch.micro_tokens", "2 values", "3 ranks"))):
            self.refused(*parts, expect=2, ranks=3 if "batch__micro_tokens" in keys else None, **keys)
        self.assertFalse((self.run_dir / "metrics.jsonl").exists())


class UnreadableFiles(JobCase):
    @unittest.skipUnless(os.getuid() == 0, "becomes another user, which takes root")
    def test_files_of_somebody_else(self):
        for path in (self.weights, self.tokens):
            path.chmod(0o600)
            self.dir.chmod(0o755)
            process = self.start(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups",
                                  *self.arguments("eval")], cwd="/")
            _, err = self.ended(process, 4)
            self.assertIn(str(path), err)
            self.assertIn("ermission denied", err)
            path.chmod(0o644)


if __name__ == "__main__":
    unittest.main()
