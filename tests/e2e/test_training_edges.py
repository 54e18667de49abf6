"""Odd documents and odd numbers of them; which documents a step takes; models with odd heads.

Expected values are closed forms or come from numpy in float64 (decoder_reference.py).
"""
import json
import unittest

import numpy as np

import support
from decoder_reference import mean_loss
from training_case import STORY, TrainingCase, write_tokens

CONFIG = json.loads((STORY / "config.json").read_text())
STEADY = {"optimizer__schedule": "constant", "optimizer__learning_rate": 1e-3}


def drawn(seed, lengths, vocabulary=512):
    """Documents of random tokens."""
    generator = np.random.default_rng(seed)
    return [generator.integers(3, vocabulary, n).astype(np.uint16) for n in lengths]


class OddCase(TrainingCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.story = {name: array for name, (_, array) in support.read_folder(STORY).items()}

    def file(self, documents, name="t.h5", **more):
        return write_tokens(self.dir / name, documents, **more)

    def assert_loss_of_step_1(self, name, documents, masks=None):
        line = self.metrics(name, "step")[0]
        self.assert_close([line["loss"]], [mean_loss(CONFIG, self.story, documents, masks)], 3e-6)

    def assert_equal_training(self, name, other, relative=2e-6):
        """Two runs took the same steps but for the last bits of sums in another order."""
        self.assert_close(self.losses(name), self.losses(other), relative)
        expected = self.parameters(other)
        for key, array in self.parameters(name).items():
            self.assertLess(np.abs(array - expected[key]).max(), 2e-5, key)


class Targets(OddCase):
    def test_a_mask_on_first_tokens_says_nothing(self):
        documents = drawn(1, [5, 9, 2, 30, 7, 12])
        ones = [np.ones(len(d)) for d in documents]
        firsts = [np.r_[0, np.ones(len(d) - 1)] for d in documents]
        for name, masks in (("absent", None), ("ones", ones), ("firsts", firsts)):
            self.train(name, run__steps=2, batch__sequences=3, data__tokens=self.file(documents, name + ".h5", masks=masks))
        self.assertEqual(self.metrics("absent", "step")[0]["targets"], 5 + 9 + 2 - 3)
        for name in ("ones", "firsts"):
            self.assertEqual(self.losses(name), self.losses("absent"))
            self.assert_same_bits(self.state(name), self.state("absent"))
        self.assert_loss_of_step_1("absent", documents[:3])

    def test_masked_tokens_and_a_document_without_targets(self):
        documents = drawn(2, [20, 15, 40, 9])
        generator = np.random.default_rng(3)
        masks = [generator.integers(0, 2, len(d)) for d in documents]
        masks[1][:] = 0
        tokens = self.file(documents, masks=masks)
        for ranks in (1, 3):
            self.train(f"run{ranks}", ranks, run__steps=2, batch__sequences=4, data__tokens=tokens)
            self.assert_loss_of_step_1(f"run{ranks}", documents, masks)
            self.assertEqual(self.metrics(f"run{ranks}", "step")[0]["targets"], sum(int(m[1:].sum()) for m in masks))
        self.assert_equal_training("run3", "run1")

    def test_one_single_target(self):
        documents = drawn(4, [20, 15, 40])
        masks = [np.zeros(len(d)) for d in documents]
        masks[1][7] = 1
        for ranks in (1, 3):
            self.train(f"run{ranks}", ranks, run__steps=2, batch__sequences=3, data__tokens=self.file(documents, masks=masks), **STEADY)
            self.assertEqual(self.metrics(f"run{ranks}", "step")[0]["targets"], 1)
            self.assert_loss_of_step_1(f"run{ranks}", documents, masks)
            self.assertLess(self.losses(f"run{ranks}")[1], self.losses(f"run{ranks}")[0])

    def test_documents_of_one_token_add_nothing(self):
        documents = drawn(5, [10, 1, 25, 1, 1, 18, 1, 7])
        long = [d for d in documents if len(d) > 1]
        for ranks in (1, 3):
            self.train(f"with{ranks}", ranks, run__steps=6, batch__sequences=8, data__tokens=self.file(documents), **STEADY)
        self.train("without", run__steps=6, batch__sequences=4, data__tokens=self.file(long, "long.h5"), **STEADY)
        self.assert_loss_of_step_1("with1", long)
        for name in ("with1", "with3"):
            self.assert_equal_training(name, "without")
        self.train("short first", run__steps=2, batch__sequences=1, data__tokens=self.file(drawn(6, [1, 4, 1, 5])))
        self.assertEqual([line["targets"] for line in self.metrics("short first", "step")], [0, 3])

    def test_a_step_without_targets(self):
        documents = self.documents["train"][:96]
        masks = [np.full(len(d), 0 if 32 <= i < 64 else 1) for i, d in enumerate(documents)]
        tokens = self.file(documents, masks=masks)
        for ranks in (1, 3):
            name = f"run{ranks}"
            keys = {"batch__sequences": 32, "data__tokens": tokens, "run__steps": 3, "checkpoint__every": 1, "checkpoint__keep": 9,
                    **STEADY}
            done = self.train(name, ranks, **keys)
            steps = self.metrics(name, "step")
            self.assertEqual([(line["targets"] > 0, line["loss"] is None, line["grad_norm"] is None) for line in steps],
                             [(True, False, False), (False, True, True), (True, False, False)])
            self.assertEqual(steps[1]["targets"], 0)
            self.assertEqual(steps[1]["tokens"], sum(len(d) for d in documents[32:64]))
            warnings = [line for line in done.stderr.splitlines() if "step 2" in line]
            self.assertEqual(len(warnings), 1, done.stderr)
            self.assertIn("32, 33, 34", warnings[0])
            self.assertIn("63", warnings[0])
            self.assert_same_bits(self.state(name, 2), self.state(name, 1))
            # resumed behind the empty step: the same third step
            self.train(name + "again", ranks, **keys, run__stop_step=2)
            self.train(name + "again", ranks, **keys)
            self.assertEqual(self.losses(name + "again"), self.losses(name))
            self.assert_same_bits(self.state(name + "again"), self.state(name))
        # AdamW's counter stood still too: as if those documents were not there
        self.train("without", data__tokens=self.file(documents[:32] + documents[64:], "short.h5"), run__steps=2, **STEADY)
        self.assertEqual([x for x in self.losses("run1") if x is not None], self.losses("without"))
        self.assert_same_bits(self.state("run1"), self.state("without"))

    def test_a_first_step_without_targets(self):
        documents = drawn(7, [10, 12])
        tokens = self.file(documents, masks=[np.zeros(10), np.ones(12)])
        self.train("run", 2, run__steps=2, run__stop_step=1, batch__sequences=1, data__tokens=tokens)
        self.assert_same_bits(self.parameters("run"), self.story)
        for key, array in self.state("run").items():
            self.assertTrue(key.startswith("parameters/") or not array.any(), key)

    def test_no_target_at_all(self):
        documents = drawn(8, [10, 12])
        for ranks in (1, 3):
            said = self.train("run", ranks, expect=4, data__tokens=self.file(documents, masks=[np.zeros(10), np.zeros(12)])).stderr
            self.assertIn("target", said)
            self.assertIn("t.h5", said)
        self.assertIn("target", self.train("run", expect=4, data__tokens=self.file(drawn(9, [1, 1, 1]))).stderr)

    def test_a_document_without_tokens(self):
        for ranks in (1, 3):
            said = self.train("run", ranks, expect=4, data__tokens=self.file(drawn(10, [5, 6, 0, 4]))).stderr
            self.assertIn("doc_offsets", said)
            self.assertIn("document 2 has no token", said)


class Numbers(OddCase):
    """Fewer documents than ranks, than a step, than anything."""

    def test_more_ranks_than_documents(self):
        tokens = self.file(drawn(11, [30, 12, 17, 25]))
        for ranks in (1, 2, 5):
            self.train(f"run{ranks}", ranks, run__steps=4, batch__sequences=2, data__tokens=tokens, **STEADY)
            self.assert_equal_training(f"run{ranks}", "run1")

    def test_a_step_of_more_documents_than_there_are(self):
        lengths = [3, 5, 8, 13, 21, 34, 55]
        tokens = self.file(drawn(12, lengths))
        expected = [sum(lengths[i % 7] - 1 for i in range(16 * s, 16 * s + 16)) for s in range(3)]
        for ranks in (1, 5):
            self.train(f"run{ranks}", ranks, run__steps=3, batch__sequences=16, data__tokens=tokens)
            self.assertEqual([line["targets"] for line in self.metrics(f"run{ranks}", "step")], expected)
            self.assertEqual([line["epoch"] for line in self.metrics(f"run{ranks}", "step")], [0, 2, 4])

    def test_epochs_become_steps_by_rounding_up(self):
        tokens = self.file(drawn(13, [4, 5, 6, 7, 8, 9, 10]))
        for epochs, steps in ((1, 2), (2, 4), (0.5, 1)):
            self.train(f"run{epochs}", run__epochs=epochs, batch__sequences=4, data__tokens=tokens)
            found = self.metrics(f"run{epochs}", "step")
            self.assertEqual([line["sequences"] for line in found], [4] * steps)

    def test_tokens_of_a_step(self):
        lengths = [40, 30, 20, 50, 10, 10]
        tokens = self.file(drawn(14, lengths))
        for size, taken in ((25, [[0], [1], [2], [3], [4, 5], [0]]), (70, [[0, 1], [2, 3], [4, 5, 0], [1, 2], [3, 4, 5]])):
            for ranks in (1, 3):
                name = f"run{size} {ranks}"
                self.train(name, ranks, run__steps=len(taken), batch__tokens=size, data__tokens=tokens)
                steps = self.metrics(name, "step")
                self.assertEqual([line["tokens"] for line in steps], [sum(lengths[i] for i in step) for step in taken])
                self.assertEqual([line["sequences"] for line in steps], [len(step) for step in taken])

    def test_small_validation_groups(self):
        documents, one = drawn(15, [20, 30]), drawn(16, [25])
        for ranks in (1, 5):
            self.train(f"one{ranks}", ranks, run__steps=2, batch__sequences=2, evaluation__every=1,
                       data__tokens=self.file(documents, validation=one))
            lines = self.metrics(f"one{ranks}", "validation")
            self.assertEqual([(line["step"], line["targets"]) for line in lines], [(0, 24), (1, 24), (2, 24)])
            self.assert_close([lines[0]["loss"]], [mean_loss(CONFIG, self.story, one)], 3e-6)
            for name, validation in (("none", []), ("absent", None)):
                done = self.train(f"{name}{ranks}", ranks, run__steps=2, batch__sequences=2, evaluation__every=1,
                                  data__tokens=self.file(documents, f"{name}.h5", validation=validation))
                self.assertIn("validation", done.stderr)
                self.assertEqual(self.metrics(f"{name}{ranks}", "validation"), [])

    def test_documents_are_cut(self):
        documents = drawn(17, [60, 10, 45])
        done = self.train("cut", 2, run__steps=2, batch__sequences=3, data__max_sequence=32, data__tokens=self.file(documents), **STEADY)
        self.train("short", run__steps=2, batch__sequences=3, data__tokens=self.file([d[:32] for d in documents], "short.h5"), **STEADY)
        self.assertRegex(done.stderr, r"\b2 documents.*\b41 tokens")
        self.assert_equal_training("cut", "short")


class Order(OddCase):
    """Lengths all differ, so that `targets` of a step of one document names it."""
    LENGTHS = [int(n) for n in np.random.default_rng(18).permutation(np.arange(3, 20))]

    def taken(self, name, ranks=1, **keys):
        tokens = self.file(drawn(19, self.LENGTHS))
        given = {"run__epochs": 2, "batch__sequences": 1, "data__shuffle": "true", "data__tokens": tokens, **keys}
        self.train(name, ranks, **given)
        return [self.LENGTHS.index(line["targets"] + 1) for line in self.metrics(name, "step")]

    def test_epochs_are_permutations_that_depend_on_the_seed_alone(self):
        n = len(self.LENGTHS)
        order = self.taken("one")
        first, second = order[:n], order[n:]
        for epoch in (first, second):
            self.assertEqual(sorted(epoch), list(range(n)))
            self.assertNotEqual(epoch, list(range(n)))
        self.assertNotEqual(first, second)
        self.assertEqual([line["epoch"] for line in self.metrics("one", "step")], [0] * n + [1] * n)
        for ranks in (2, 3, 5):
            self.assertEqual(self.taken(f"ranks{ranks}", ranks), order)
        self.assertNotEqual(self.taken("seed", run__seed=4321)[:n], first)
        self.assertEqual(self.taken("plain", data__shuffle="false"), 2 * list(range(n)))

    def test_a_resumed_run_takes_the_same_documents(self):
        order = self.taken("whole")
        self.taken("stopped", 4, run__stop_step=11)
        self.assertEqual(self.taken("stopped", 3), order)

    def test_steps_run_across_the_end_of_an_epoch(self):
        order = self.taken("one")
        tokens = self.file(drawn(19, self.LENGTHS))
        self.train("four", 3, run__steps=8, batch__sequences=4, data__shuffle="true", data__tokens=tokens)
        expected = [sum(self.LENGTHS[i] - 1 for i in order[4 * s:4 * s + 4]) for s in range(8)]
        self.assertEqual([line["targets"] for line in self.metrics("four", "step")], expected)


class OddHeads(OddCase):
    """Hidden size no multiple of the heads, an explicit head size, grouped queries; the gradient by central differences in float64."""
    CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61, "hidden_size": 28, "intermediate_size": 40,
              "num_hidden_layers": 2, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-5,
              "max_position_embeddings": 64, "rope_theta": 500.0}

    def model(self, tied):
        config = {**self.CONFIG, "tie_word_embeddings": tied}
        generator = np.random.default_rng(20)
        shapes = {"model.embed_tokens.weight": (61, 28), "model.norm.weight": (28,)}
        for i in range(2):
            p = f"model.layers.{i}."
            shapes |= {p + "input_layernorm.weight": (28,), p + "post_attention_layernorm.weight": (28,),
                       p + "self_attn.q_proj.weight": (24, 28), p + "self_attn.k_proj.weight": (8, 28),
                       p + "self_attn.v_proj.weight": (8, 28), p + "self_attn.o_proj.weight": (28, 24), p + "mlp.gate_proj.weight": (40, 28), p + "mlp.up_proj.weight": (40, 28),
                       p + "mlp.down_proj.weight": (28, 40)}
        if not tied:
            shapes["lm_head.weight"] = (61, 28)
        weights = {name: ((1 if len(shape) == 1 else 0) + 0.3 * generator.standard_normal(shape)).astype(np.float32)
                   for name, shape in shapes.items()}
        folder = self.dir / f"hf tied {tied}"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        support.write_safetensors(folder / "model.safetensors", {name: ("F32", array) for name, array in weights.items()})
        return folder, config, weights

    def test_loss_and_gradient(self):
        documents = drawn(21, [9, 1, 17, 5], 61)
        masks = [np.random.default_rng(22).integers(0, 2, len(d)) for d in documents]
        tokens = self.file(documents, masks=masks, vocabulary=61)
        for tied in (False, True):
            folder, config, weights = self.model(tied)
            for ranks in (1, 2):
                with self.subTest(tied=tied, ranks=ranks):
                    name = f"tied {tied} {ranks}"
                    self.train(name, ranks, model__weights=folder, data__tokens=tokens, batch__sequences=4, run__steps=1,
                               optimizer__clip_norm=0, optimizer__beta1=0.75)
                    self.assert_close(self.losses(name), [mean_loss(config, weights, documents, masks)], 3e-6)
                    state = self.state(name)
                    # after one step the first moment is (1 - beta1) times the gradient
                    gradients = {key: state["exp_avg/" + key].astype(np.float64) * 4 for key in weights}
                    norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
                    self.assert_close([self.metrics(name, "step")[0]["grad_norm"]], [norm], 1e-5)
                    self.check_gradients(config, weights, documents, masks, gradients)

    def check_gradients(self, config, weights, documents, masks, gradients):
        generator, wide = np.random.default_rng(23), {key: array.astype(np.float64) for key, array in weights.items()}
        for key, gradient in gradients.items():
            largest = np.unravel_index(np.abs(gradient).argmax(), gradient.shape)
            for place in (largest, tuple(generator.integers(0, n) for n in gradient.shape)):
                def loss(step):
                    kept = wide[key][place]
                    wide[key][place] = kept + step
                    value = mean_loss(config, wide, documents, masks)
                    wide[key][place] = kept
                    return value
                # error of the difference: about 1e-10 of the second derivatives and 1e-16 / 1e-5
                expected = (loss(1e-5) - loss(-1e-5)) / 2e-5
                self.assertLess(abs(gradient[place] - expected), 5e-5 * abs(gradient[largest]), f"{key}{list(place)}")

    def test_contradictions(self):
        folder, config, _ = self.model(False)
        cases = [({"num_attention_heads": 0}, ("num_attention_heads", "0")), ({"num_key_value_heads": 0}, ("num_key_value_heads", "0")),
                 ({"num_attention_heads": 4, "num_key_value_heads": 3}, ("num_attention_heads = 4", "num_key_value_heads = 3")),
                 ({"head_dim": 7}, ("head_dim = 7", "odd")), ({"head_dim": None}, ("hidden_size = 28", "num_attention_heads = 3")),
                 ({"head_dim": 10}, ("q_proj", "30"))]
        for change, words in cases:
            with self.subTest(change):
                (folder / "config.json").write_text(json.dumps({**config, **change}))
                tokens = self.file(drawn(24, [5, 6], 61), vocabulary=61)
                said = self.train("run", expect=4, model__weights=folder, data__tokens=tokens).stderr
                for word in words:
                    self.assertIn(word, said)


if __name__ == "__main__":
    unittest.main()
