"""Whole training runs through the CUDA backend's host code, kernels and all, against float64 PyTorch: every strategy, one to four ranks, streams in
several orders. The GPU is the stand-in of tests/emulation/harness."""
import json
import unittest

import device_case
from device_case import DEVICE, DeviceCase, emulated, support
from training_case import TrainingCase

STRATEGIES = ("no_shard", "shard_opt", "shard_grad_op", "full_shard", "hybrid_shard", "hierarchical_shard")
ORDERS = ("as_submitted", "last_stream_first", "random")


class Fixtures(DeviceCase):
    def every_strategy(self, name, first):
        for i, strategy in enumerate(STRATEGIES):
            ranks, order = (i + first) % 4 + 1, ORDERS[(i + first) % 3]
            with self.subTest(f"{strategy}, {ranks} ranks, {order}"), emulated(order=order):
                groups = {"sharding__node_size": 2} if strategy.startswith("h") and ranks % 2 == 0 else {}
                steps = self.train(name, support.FIXTURES / name / "hf", run=f"run{i}", ranks=ranks, strategy=strategy, **groups, **DEVICE)
                self.assert_trains_as_pytorch(name, steps)

    def test_llama2_with_every_strategy(self):
        self.every_strategy("llama2", 0)

    def test_qwen3_with_every_strategy(self):
        self.every_strategy("qwen3", 2)

    def test_evaluation_and_checkpoints_from_the_device(self):
        name = "qwen3"
        with emulated():
            last = self.train(name, support.FIXTURES / name / "hf", ranks=2, strategy="full_shard", **DEVICE)[-1]["loss"]
            self.train(name, support.FIXTURES / name / "hf", run="two", ranks=3, strategy="shard_grad_op", steps=2, **DEVICE)
            done = support.run("eval", f"--model.weights={self.dir}/two/latest", f"--data.tokens={self.write_tokens(name)}", "--device.kind=cuda",
                               "--precision.compute=fp32", "--sharding.strategy=full_shard", ranks=2)
        found = json.loads(done.stdout.splitlines()[-1])["loss"]
        self.assertLess(abs(found - last), 3e-6 * last, "the third step's loss is that of the second step's weights")

    def test_sixteen_bits_train_close_to_fp32(self):
        name = "llama2"
        numbers, _ = device_case.reference(name)
        with emulated():
            steps = self.train(name, support.FIXTURES / name / "hf", ranks=2, strategy="full_shard", precision__compute="bf16", **DEVICE)
        for line, loss in zip(steps, numbers["loss"], strict=True):
            self.assertLess(abs(line["loss"] - loss), 1.5e-2 * loss)

    def test_attention_by_cudnn_and_by_own_kernels(self):
        name = "mistral_sliding"
        numbers, _ = device_case.reference(name)
        found = {}
        for by in ("own", "cudnn", "auto"):
            with self.subTest(by), emulated(order="random", calls=self.dir / f"calls-{by}"):
                steps = self.train(name, support.FIXTURES / name / "hf", run=by, ranks=2, strategy="full_shard", precision__compute="bf16",
                                   device__attention=by, **DEVICE)
                self.assertEqual("attention by cuDNN" in self.said.stdout, by != "own")
                self.assertNotIn("instead of cuDNN", self.said.stderr)
                counts = dict(line.rsplit(" ", 1) for line in (self.dir / f"calls-{by}.0").read_text().splitlines())
                self.assertEqual("execute" in counts, by != "own")
                self.assertLessEqual(int(counts.get("build_plans", 0)), int(counts.get("execute", 0)) // 2)
            for line, loss in zip(steps, numbers["loss"], strict=True):
                self.assertLess(abs(line["loss"] - loss), 1.5e-2 * loss)
            found[by] = [(line["loss"], line["grad_norm"]) for line in steps]
        self.assertEqual(found["cudnn"], found["auto"])
        self.assertNotEqual(found["cudnn"], found["own"], "cuDNN's stand-in rounds otherwise")


class Streams(DeviceCase):
    def run_of(self, run, ranks=2, steps=2, **variables):
        with emulated(**variables):
            return self.train("llama_biases", support.FIXTURES / "llama_biases" / "hf", run=run, ranks=ranks, steps=steps, strategy="full_shard", **DEVICE)

    def calls(self, run, **more):
        """{function: how often rank 0 called it} of a run."""
        self.run_of(run, calls=self.dir / run, **more)
        lines = (self.dir / f"{run}.0").read_text().splitlines()
        return {name: int(count) for name, count in (line.rsplit(" ", 1) for line in lines)}

    def test_the_order_of_streams_changes_no_bit(self):
        found = [[(line["loss"], line["grad_norm"]) for line in self.run_of(f"run{i}", order=order, seed=i + 1)]
                 for i, order in enumerate((*ORDERS, "random"))]
        self.assertEqual(len(set(map(str, found))), 1, found)

    def test_nothing_is_allocated_after_step_1(self):
        one, three = self.calls("one", steps=1), self.calls("three", steps=3)
        for name in ("cudaMalloc", "cudaHostAlloc", "cudaStreamCreateWithPriority", "ncclCommInitRankConfig"):
            self.assertGreater(one[name], 0, name)
            self.assertEqual(one[name], three[name], name)
        self.assertEqual(three["cudaMalloc"], 1, "all of it is one arena")
        self.assertGreater(three["kernel"], 2 * one["kernel"])
        self.assertEqual(one.get("cudaDeviceSynchronize", 0), 0)

    def test_every_access_of_a_step_is_in_order(self):
        self.choose("checked")
        self.run_of("checked", order="random", seed=3)

    def test_removed_waits_are_noticed(self):
        """Not every wait can matter in so small a run; but most do, and each that does is named."""
        self.choose("checked")
        waits = self.calls("all", steps=1)["useful wait"]
        self.assertGreater(waits, 5)
        noticed = 0
        for n in range(1, waits + 1, max(1, waits // 8)):
            try:
                self.run_of(f"without{n}", steps=1, fail=f"useful wait:{n}@0")
            except AssertionError as stopped:
                self.assertIn("is not ordered after", str(stopped))
                noticed += 1
        print(f"{noticed} removed waits noticed")
        self.assertGreater(noticed, 3)


class Machines(DeviceCase):
    def trains(self, name="llama_biases", ranks=2, **keys):
        steps = self.train(name, support.FIXTURES / name / "hf", ranks=ranks, steps=2, strategy="full_shard", **keys)
        self.assert_trains_as_pytorch(name, steps)
        return self.said

    def test_two_ranks_share_a_gpu_over_mpi(self):
        with emulated(devices=1):
            self.trains(communication__backend="mpi", **DEVICE)

    def test_a_machine_without_driver_trains_on_its_cpus(self):
        with emulated(driver=0):
            self.trains()

    def test_health_of_the_gpu_is_in_the_metrics(self):
        with emulated():
            self.trains(ranks=None, **DEVICE)
        text = (self.dir / "run" / "metrics.jsonl").read_text()
        for value in ("61", "512.3"):
            self.assertIn(value, text)


class Stories(TrainingCase):
    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(setattr, support, "BUILD", support.BUILD)
        DeviceCase.choose("plain")
        super().setUpClass()

    def test_the_first_steps_of_the_curve(self):
        with emulated(order="random"):
            self.train("curve", ranks=2, **self.curve_keys(run__stop_step=2, evaluation__documents=1, sharding__strategy="full_shard", **DEVICE))
        self.assert_on_curve("curve", last=2)


if __name__ == "__main__":
    unittest.main()
