"""Every sharding strategy at every shape: the same curve, the same checkpoints, the bytes and memory that the banner names."""
import itertools
import pathlib
import re
import tempfile
import unittest

import numpy as np

import support
from training_case import CURVE, FULL, TrainingCase, parse

STRATEGIES = ("no_shard", "shard_opt", "shard_grad_op", "full_shard", "hybrid_shard", "hierarchical_shard")
BY_NODE = ("hybrid_shard", "hierarchical_shard")
# of two shares a rank may have none, but a node of a strategy by nodes may not
SHAPES = {"2 ranks": dict(ranks=2), "3 ranks, nodes of 2 and 1": dict(ranks=3, node_size=2, shares="0,2,1", micro=4096),
          "4 ranks on 2 equal nodes": dict(ranks=4, node_size=2, shares="3,1,3,1", micro=300),
          "5 ranks, node_size 2": dict(ranks=5, node_size=2, micro=300),
          "6 ranks, node_size 3": dict(ranks=6, node_size=3, shares="2,0,1,1,0,3", micro=300)}


def keys_of(strategy, ranks, node_size=None, shares=None, micro=512):
    keys = {"sharding__strategy": strategy, "batch__micro_tokens": micro}
    if node_size:
        keys["sharding__node_size"] = node_size
    if shares:
        keys["sharding__shares"] = shares
    return keys


class ShardingCase(TrainingCase):
    def run_of(self, name, strategy, shape, **more):
        """Trains by the curve's settings; few validation documents, since they are not looked at."""
        keys = {"evaluation__documents": 4, **keys_of(strategy, **shape), **more}
        return self.train(name, shape["ranks"], **self.curve_keys(**keys))


class Curve(ShardingCase):
    def test_forty_steps_of_every_strategy(self):
        chosen = {"no_shard": (2, 3), "shard_opt": (1, 4), "shard_grad_op": (0, 3), "full_shard": (1, 3, 4), "hybrid_shard": (1, 2, 3),
                  "hierarchical_shard": (1, 3, 4)}
        for strategy, shapes in chosen.items():
            for shape in (list(SHAPES)[i] for i in shapes):
                with self.subTest(strategy=strategy, shape=shape):
                    name = f"{strategy} {shape}"
                    self.run_of(name, strategy, SHAPES[shape])
                    self.assert_on_curve(name)

    def test_rows_of_ones_own(self):
        for i, row in enumerate(("replica,replica,node", "replica,node,world", "node,world,world", "replica,node,node")):
            with self.subTest(row=row):
                parameters, gradients, optimizer = row.split(",")
                done = self.run_of(row, "auto", SHAPES["5 ranks, node_size 2"], run__stop_step=12, sharding__parameters=parameters,
                                   sharding__gradients=gradients, sharding__optimizer=optimizer)
                self.assertIn(f"parameters={parameters}, gradients={gradients}, optimizer={optimizer}", done.stdout)
                self.assert_on_curve(row, last=12)

    @unittest.skipUnless(FULL, "half an hour")
    def test_every_combination(self):
        tokens = max(sum(len(d) for d in self.documents["train"][32 * i:32 * i + 32]) for i in range(CURVE["settings"]["steps"]))
        longest = max(len(d) for group in self.documents.values() for d in group)
        for strategy, ranks in itertools.product(STRATEGIES, range(1, 7)):
            for size in sorted({1, 2, 3, ranks} & set(range(1, ranks + 1))) if strategy in BY_NODE else (ranks,):
                uneven = [1 + 3 * r % 5 for r in range(ranks)]
                idle = (lambda r: r % size != 0 and r % 2 == 1) if strategy in BY_NODE else (lambda r: r % 3 == 1)
                zeros = [0 if idle(r) else 1 + r for r in range(ranks)]
                for shares in (None, uneven, zeros):
                    for k in (1, 2, 4):
                        with self.subTest(strategy=strategy, ranks=ranks, node_size=size, shares=shares, k=k):
                            shape = dict(ranks=ranks, node_size=size, shares=shares and ",".join(map(str, shares)),
                                         micro=max(longest, round(1.2 * tokens / ranks / k)))
                            self.run_of("run", strategy, shape, checkpoint__resume="auto")
                            self.assert_on_curve("run")
                            folder = self.dir / "run"
                            folder.rename(self.dir / f"done {len(list(self.dir.iterdir()))}")


class SameBits(ShardingCase):
    def results(self, name):
        return [(line["step"], line["loss"], line["grad_norm"]) for line in self.metrics(name, "step")]

    def test_reruns_resumes_and_exports_of_every_strategy(self):
        names = ["2 ranks", "3 ranks, nodes of 2 and 1", "4 ranks on 2 equal nodes"]
        for i, strategy in enumerate(STRATEGIES):
            shape = SHAPES[names[i % 3] if strategy not in BY_NODE else names[1]]
            with self.subTest(strategy=strategy, shape=shape):
                once, again = f"{strategy} once", f"{strategy} again"
                self.run_of(once, strategy, shape, run__stop_step=6)
                self.run_of(again, strategy, shape, run__stop_step=3)
                self.run_of(again, strategy, shape, run__stop_step=6)
                self.assertEqual(self.results(again), self.results(once))
                state = self.state(once)
                self.assert_same_bits(self.state(again), state)
                self.assert_whole(once, strategy)

    def assert_whole(self, name, strategy):
        """h5py sees whole, finite tensors of the model's shapes, and `export` writes the same values."""
        imported = support.read_folder(support.ROOT / "inputs" / "stories260k-hf")
        state = self.state(name)
        self.assertEqual(sorted(state), sorted(f"{group}/{p}" for group in ("parameters", "exp_avg", "exp_avg_sq") for p in imported))
        for key, array in state.items():
            self.assertEqual(array.shape, imported[key.split("/", 1)[1]][1].shape, key)
            self.assertTrue(np.isfinite(array).all(), key)
        out = self.dir / f"{strategy} exported"
        support.run("export", "--from", self.dir / name / "latest", "--to", out)
        exported = {p: array for p, (_, array) in support.read_folder(out).items()}
        self.assert_same_bits(exported, self.parameters(name))

    def test_strategies_that_sum_in_the_same_order(self):
        """With one micro-step every strategy that sums over all ranks at once does; with more, those with whole gradients among themselves
        and those with gradients split over the world among themselves."""
        for micro, groups in ((4096, [("no_shard", "shard_opt", "shard_grad_op", "full_shard")]),
                              (256, [("no_shard", "shard_opt"), ("shard_grad_op", "full_shard")])):
            for group in groups:
                for strategy in group:
                    self.run_of(f"{strategy} {micro}", strategy, dict(ranks=3, shares="1,0,2", micro=micro), run__stop_step=5)
                    with self.subTest(strategy=strategy, micro=micro):
                        self.assertEqual(self.losses(f"{strategy} {micro}"), self.losses(f"{group[0]} {micro}"))
                        self.assert_same_bits(self.state(f"{strategy} {micro}"), self.state(f"{group[0]} {micro}"))

    def test_prefetch_and_kept_weights(self):
        shape = SHAPES["3 ranks, nodes of 2 and 1"]
        self.run_of("plain", "hierarchical_shard", shape, run__stop_step=4, batch__micro_tokens=300)
        for key in ("sharding__prefetch", "sharding__keep_gathered"):
            value = str(key.endswith("gathered")).lower()
            self.run_of(key, "hierarchical_shard", shape, run__stop_step=4, batch__micro_tokens=300, **{key: value})
            self.assertEqual(self.results(key), self.results("plain"))
            self.assert_same_bits(self.state(key), self.state("plain"))


class Checkpoints(ShardingCase):
    """One run that changes its strategy, its number of ranks, its nodes and its shares every few steps."""
    JOURNEY = [("full_shard", dict(ranks=2)), ("no_shard", dict(ranks=3, shares="1,2,3")),
               ("hierarchical_shard", dict(ranks=6, node_size=3, shares="2,0,1,1,0,3")), ("shard_opt", dict(ranks=1)),
               ("hybrid_shard", dict(ranks=5, node_size=2)), ("shard_grad_op", dict(ranks=4, shares="0,1,0,5")),
               ("hierarchical_shard", dict(ranks=3, node_size=1)), ("full_shard", dict(ranks=5, shares="1,0,2,1,1"))]

    def travel(self, name, journey):
        each = CURVE["settings"]["steps"] // len(journey)
        for i, (strategy, shape) in enumerate(journey):
            done = self.run_of(name, strategy, shape, run__stop_step=each * (i + 1))
            if i > 0:
                self.assertIn(f"after step {each * i}", done.stdout)
        self.assert_on_curve(name)
        self.assertEqual([line["strategy"] for line in self.metrics(name) if line["event"] in ("start", "resume")],
                         [strategy for strategy, _ in journey])

    def test_resume_in_any_other(self):
        self.travel("journey", self.JOURNEY)

    @unittest.skipUnless(FULL, "ten minutes")
    def test_every_pair_of_strategies(self):
        shapes = itertools.cycle(shape for _, shape in self.JOURNEY)
        for first, second in itertools.permutations(STRATEGIES, 2):
            with self.subTest(first=first, second=second):
                fit = lambda strategy: next(s for s in shapes if strategy not in BY_NODE or "node_size" in s)
                self.travel(f"{first} {second}", [(strategy, fit(strategy)) for strategy in (first, second) * 4])

    def test_evaluation_by_every_strategy(self):
        found = []
        for strategy, shape in zip(STRATEGIES, ("2 ranks", "5 ranks, node_size 2", "3 ranks, nodes of 2 and 1") * 2):
            keys = {key.replace("__", "."): value for key, value in keys_of(strategy, **SHAPES[shape]).items()}
            done = support.run("eval", f"--model.weights={self.weights}", f"--data.tokens={self.tokens}", "--precision.compute=fp32",
                               "--device.threads=1", "--evaluation.documents=40", *(f"--{k}={v}" for k, v in keys.items()),
                               ranks=SHAPES[shape]["ranks"])
            self.assertIn(f"sharding         {strategy} over", done.stdout)
            found.append(parse(done.stdout.splitlines()[-1])["loss"])
        self.assert_close(found, found[:1] * len(found), 1e-6)


class Choice(ShardingCase):
    def refused(self, *parts, ranks=2, **keys):
        done = self.train("refused", ranks, expect=2, **self.curve_keys(**keys))
        # a value that no run could take is refused by every rank, before they know of each other
        errors = {line for line in done.stderr.splitlines() if line.startswith("sherd: error:")}
        self.assertEqual(len(errors), 1, done.stderr)
        for part in parts:
            self.assertIn(part, next(iter(errors)))
        self.assertFalse((self.dir / "refused" / "metrics.jsonl").exists())

    def test_decks_that_make_no_sense(self):
        self.refused("zero9", "no_shard, ddp", "hierarchical_shard, hfsdp", sharding__strategy="zero9")
        self.refused("sharding.parameters = world with sharding.gradients = node", "at least as finely", sharding__parameters="world",
                     sharding__gradients="node", sharding__optimizer="world", sharding__strategy="auto")
        self.refused("sharding.gradients = world with sharding.optimizer = node", sharding__parameters="node", sharding__gradients="world",
                     sharding__optimizer="node", sharding__strategy="auto")
        self.refused("sharding.shares", "3 values for 2 ranks", sharding__strategy="full_shard", sharding__shares="1,2,1")
        self.refused("sharding.shares are all 0", sharding__strategy="full_shard", sharding__shares="0,0")
        self.refused("all 0 on node 1", "ranks 1 to 1", "hybrid_shard", sharding__strategy="hybrid_shard", sharding__shares="1,0",
                     sharding__node_size=1)
        self.refused("sharding.shares", sharding__strategy="full_shard", sharding__shares="1,-1")
        self.refused("sharding.node_size", sharding__strategy="hybrid_shard", sharding__node_size=-2)

    def banner(self, ranks, **keys):
        return self.train(f"banner {ranks} {keys}", ranks, **self.curve_keys(run__stop_step=1, evaluation__documents=1, **keys)).stdout

    def test_default_is_by_nodes_where_there_are_several(self):
        self.assertIn("sharding         full_shard over 2 rank(s) on 1 node(s)\n", self.banner(2, sharding__strategy="auto"))
        self.assertIn("sharding         hierarchical_shard over 4 rank(s) on 2 node(s)\n",
                      self.banner(4, sharding__strategy="auto", sharding__node_size=2))

    def test_aliases(self):
        for alias, strategy in (("ddp", "no_shard"), ("zero2", "shard_grad_op"), ("fsdp", "full_shard"), ("mics", "hybrid_shard")):
            self.assertIn(f"sharding         {strategy} over", self.banner(2, sharding__strategy=alias))

    def test_banner_names_bytes_and_memory(self):
        text = self.banner(2, sharding__strategy="shard_grad_op")
        phases = dict(re.findall(r"^  (gather weights|reduce gradients|finish gradients|refresh weights) +(\d+)", text, re.M))
        self.assertEqual(set(phases), {"reduce gradients", "refresh weights"})
        parameters = sum(array.size for _, array in support.read_folder(support.ROOT / "inputs" / "stories260k-hf").values())
        for sent in phases.values():  # half of 4 bytes of each parameter and of the padding to 256 bytes
            self.assertGreaterEqual(int(sent), 1.9 * parameters)
            self.assertLess(int(sent), 2.1 * parameters)
        self.assertRegex(text, r"sent a step +[\d.]+ MiB with one micro-step, [\d.]+ MiB more for each further one")
        classes = {name: int(size) for name, size in re.findall(r"^  (\S.*?) +\S+ +(\d+) +[\d.]+ MiB$", text, re.M)}
        for name in ("weights (replica)", "exp_avg (world)", "exp_avg_sq (world)", "gradients (world)", "gradients of units", "activations",
                     "program and libraries"):
            self.assertIn(name, classes)
        self.assertGreater(classes["weights (replica)"], 1.9 * classes["exp_avg (world)"])

    def test_gradients_rounded_on_the_way(self):
        for strategy in ("full_shard", "hierarchical_shard", "no_shard"):
            with self.subTest(strategy=strategy):
                self.run_of(strategy, strategy, dict(ranks=4, node_size=2), precision__reduce="bf16", run__stop_step=15)
                expected = [line["loss"] for line in CURVE["steps"][:15]]
                self.assert_close(self.losses(strategy), expected, 1e-3)
                self.assertGreater(max(abs(a - b) / b for a, b in zip(self.losses(strategy), expected)), 3e-6)


class Memory(unittest.TestCase):
    """31.6M parameters on two ranks: what the banner promises is what the process holds."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sherd-memory-")
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def tool(self, name, *arguments):
        support.subprocess.run([str(support.BUILD / "tools" / name), *map(str, arguments)], check=True, capture_output=True, timeout=120)

    def test_peak_is_what_was_planned(self):
        weights, tokens = self.dir / "small.h5", self.dir / "tokens.h5"
        self.tool("make_random_model", "small", weights)
        self.tool("make_random_tokens", tokens, 8192, 40, 128, 1)
        cases = [("full_shard", "fp32", "1,1"), ("no_shard", "bf16", "1,1"), ("full_shard", "fp32", "1,3")]
        cases += [(s, c, "1,1") for s in STRATEGIES for c in ("fp32", "bf16")] if FULL else []
        for strategy, compute, shares in cases:
            with self.subTest(strategy=strategy, compute=compute, shares=shares):
                run = self.dir / f"{strategy} {compute} {shares}"
                done = support.run("train", f"--model.weights={weights}", f"--data.tokens={tokens}", f"--run.directory={run}",
                                   "--run.steps=3", "--checkpoint.every=2", "--batch.sequences=2", "--batch.micro_tokens=128",
                                   f"--precision.compute={compute}", f"--sharding.strategy={strategy}", f"--sharding.shares={shares}",
                                   "--device.threads=1", ranks=2)
                rank, planned = re.search(r"largest total, of rank (\d) +(\d+)", done.stdout).groups()
                if shares == "1,3":
                    self.assertEqual(rank, "1")
                lines = [parse(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                peaks = [line["memory_bytes"] for line in lines if line["event"] == "step"]
                self.assertEqual(len(peaks), 3)
                self.assertLess(abs(peaks[-1] / int(planned) - 1), 0.1, f"{peaks} against {planned}")
                self.assertLess(peaks[1] - peaks[0], 2**20, peaks)  # nothing more after step 1


if __name__ == "__main__":
    unittest.main()
