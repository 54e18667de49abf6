"""Whole training runs through the CUDA backend's host code, kernels and all, against float64 PyTorch: every strategy, one to four ranks, streams in
several orders. The GPU is the stand-in of tests/emulation/harness."""
import concurrent.futures
import json
import os
import time
import unittest
from unittest import mock

import device_case
from device_case import DEVICE, DeviceCase, emulated, support
from training_case import TrainingCase

STRATEGIES = ("no_shard", "shard_opt", "shard_grad_op", "full_shard", "hybrid_shard", "hierarchical_shard")
ORDERS = ("as_submitted", "first_stream_first", "last_stream_first", "random")


class Fixtures(DeviceCase):
    def trains(self, name, strategy, ranks, order):
        """Four ranks are two nodes."""
        nodes = {"sharding__node_size": 2} if ranks == 4 else {}
        with self.subTest(f"{strategy}, {ranks} ranks, {order}"), emulated(order=order):
            steps = self.train(name, support.FIXTURES / name / "hf", run=f"{strategy}-{ranks}-{order}", ranks=ranks, strategy=strategy, **nodes,
                               **DEVICE)
            self.assert_trains_as_pytorch(name, steps)

    def test_llama2_with_every_strategy_in_every_order(self):
        for i, strategy in enumerate(STRATEGIES):
            for order in ORDERS:
                self.trains("llama2", strategy, 4 if strategy.startswith("h") else i % 3 + 2, order)

    def test_qwen3_with_every_strategy(self):
        for i, strategy in enumerate(STRATEGIES):
            self.trains("qwen3", strategy, (3, 4, 1, 2, 4, 4)[i], ORDERS[i % 4])

    def test_shares_may_be_uneven_and_empty(self):
        """Who owns nothing has nothing to wait for, and takes part in the others' collectives all the same."""
        with emulated():
            steps = self.train("llama2", support.FIXTURES / "llama2" / "hf", ranks=4, strategy="shard_grad_op", sharding__shares="3,1,0,2", **DEVICE)
        self.assert_trains_as_pytorch("llama2", steps)

    def test_an_error_of_all_ranks_leaves_none_waiting_for_weights_under_way(self):
        """Rank 0 cannot write its metrics, where rank 1 has begun to take part in the refresh of weights and rank 0 has not."""
        name = "llama2"
        metrics = self.dir / "run" / "metrics.jsonl"
        with emulated(devices=1, order="first_stream_first", alone_seconds="0,0.00001"):
            with concurrent.futures.ThreadPoolExecutor() as pool:
                job = pool.submit(self.train, name, support.FIXTURES / name / "hf", ranks=2, strategy="shard_grad_op", steps=1_000_000,
                                  communication__backend="mpi", communication__timeout_s=40, **DEVICE)
                while not job.done() and not (metrics.exists() and '"step":3' in metrics.read_text()):
                    time.sleep(0.01)
                (self.dir / "link").symlink_to(self.dir / "nowhere" / "metrics.jsonl")
                os.replace(self.dir / "link", metrics)
                with self.assertRaisesRegex(AssertionError, r"(?s)exit 4, .*metrics.jsonl: No such file"):
                    job.result(25)

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
    def run_of(self, run, ranks=2, steps=2, keys=DEVICE, **variables):
        with emulated(**variables):
            return self.train("llama_biases", support.FIXTURES / "llama_biases" / "hf", run=run, ranks=ranks, steps=steps, strategy="full_shard", **keys)

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

    def test_a_step_reads_two_device_values_and_waits_four_times(self):
        """Loss and squares are copied to the host for the step's one decision. The host waits for its results and where phases end, however
        many micro-batches there are."""
        one, three = (self.calls(f"steps-{steps}", steps=steps, keys={**DEVICE, "batch__sequences": 9, "batch__micro_tokens": 32}) for steps in (1, 3))
        self.assertIn('"micro_steps":3', (self.dir / "steps-3" / "metrics.jsonl").read_text())
        self.assertEqual(three["copy to host"] - one["copy to host"], 2 * 2)
        waits = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
        self.assertLessEqual(sum(three.get(name, 0) - one.get(name, 0) for name in waits), 2 * 4)

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

    def test_a_gpu_that_two_ranks_would_take_is_an_error(self):
        with emulated(devices=1):
            done = self.fails(3)
        self.assertRegex(done.stderr, r"ranks 0 and 1 \(host \S+\) would share the GPU at 0000:10:00.0.*communication.backend = mpi")

    def test_different_gpus_train_together(self):
        with emulated(capability="90,75"):
            said = self.trains(precision__compute="auto", device__kind="cuda").stdout
        self.assertRegex(said, r"(?s)rank 0 .*sm_90.*rank 1 .*sm_75.*fp32 \(not every rank's device has bf16")
        with emulated(capability="90,75"):
            self.assertIn("sm_75", self.fails(2, precision__compute="bf16").stderr)

    def test_every_rank_must_load_the_nccl_of_the_others_and_none_older_than_was_compiled(self):
        with emulated(nccl_version="99999,99998"):
            self.assertIn("rank 0 has NCCL 9.99.99 and rank 1 has NCCL 9.99.98", self.fails(3).stderr)
        with emulated(nccl_version="22000"):
            self.assertIn("the NCCL that is loaded is 2.20.0", self.fails(3).stderr)

    def fails(self, code, **keys):
        name = "llama_biases"
        keys = {"device__kind": "cuda", "precision__compute": "fp32", **keys}
        return support.run("train", f"--model.weights={support.FIXTURES / name / 'hf'}", f"--data.tokens={self.write_tokens(name)}",
                           "--run.steps=1", f"--run.directory={self.dir / 'failed'}",
                           *(f"--{key.replace('__', '.')}={value}" for key, value in keys.items()), ranks=2, expect=code)

    def device_line(self):
        lines = [json.loads(line) for line in (self.dir / "run" / "metrics.jsonl").read_text().splitlines()]
        found = [line for line in lines if line["event"] == "device"]
        self.assertEqual(found[0]["step"], 1, "with the first step, and then after ten seconds")
        return found[0], lines

    def test_health_of_the_gpus_is_in_the_metrics(self):
        with emulated():
            self.trains(**DEVICE)
        line, lines = self.device_line()
        self.assertEqual({key: line[key] for key in ("step", "temperature_c", "power_w", "throttled", "ecc_errors")},
                         {"step": 1, "temperature_c": 61, "power_w": 2 * 512.3, "throttled": 0, "ecc_errors": 2})
        start = next(line for line in lines if line["event"] == "start")
        self.assertEqual(line["planned_bytes"], start["planned_bytes"])
        self.assertLess(abs(line["memory_bytes"] - line["planned_bytes"]), 0.03 * line["planned_bytes"])
        self.assertRegex(self.said.stderr, r"the GPU of rank 1 \(host \S+\) has 1 uncorrected memory error\(s\)")

    def test_a_gpu_that_ranks_share_is_counted_once(self):
        with emulated(devices=1):
            self.trains(communication__backend="mpi", **DEVICE)
        line, _ = self.device_line()
        self.assertEqual((line["power_w"], line["ecc_errors"]), (512.3, 1))

    def test_parts_that_mig_makes_of_one_card_are_devices_of_their_own(self):
        with emulated(mig=1):
            self.trains(**DEVICE)
        line, lines = self.device_line()
        self.assertEqual((line["power_w"], line["ecc_errors"]), (512.3, 1), "the card's")
        self.assertLess(abs(line["memory_bytes"] - line["planned_bytes"]), 0.03 * line["planned_bytes"], "of one part")

    def test_a_gpu_that_is_held_down_is_told(self):
        with emulated(nvml_throttle="0x40"):
            self.trains(**DEVICE)
        self.assertEqual(self.device_line()[0]["throttled"], 2)
        self.assertIn("is held down by thermal (hardware) and has 1 uncorrected memory error(s)", self.said.stderr)

    def test_what_nobody_tells_is_null(self):
        with emulated(), mock.patch.dict(os.environ, SHERD_NVML="/nonexistent"):
            self.trains(**DEVICE)
        line, _ = self.device_line()
        for key in ("temperature_c", "power_w", "throttled", "ecc_errors"):
            self.assertIsNone(line[key], key)

    def test_a_memory_limit_is_each_ranks_own(self):
        """Two ranks share a GPU; a limit of what the plan says is enough, and a byte less is not."""
        with emulated(devices=1):
            said = self.trains(communication__backend="mpi", **DEVICE).stdout
            table = said[said.index("memory of rank 0"):said.index("  total")]
            needed = sum(int(line.split()[-3]) for line in table.splitlines()[1:] if "in use before" not in line)
            self.trains(run="limited", communication__backend="mpi", device__memory_limit=needed, **DEVICE)
            done = self.fails(5, communication__backend="mpi", device__memory_limit=needed // 2)
        self.assertIn("device.memory_limit is", done.stderr)


class Stories(TrainingCase):
    @classmethod
    def setUpClass(cls):
        cls.addClassCleanup(setattr, support, "BUILD", support.BUILD)
        DeviceCase.choose("plain")
        super().setUpClass()

    def test_the_first_steps_of_the_curve(self):
        """A step in each order of streams, from checkpoint to checkpoint."""
        for step, order in enumerate(ORDERS, 1):
            with emulated(order=order):
                self.train("curve", ranks=2, **self.curve_keys(run__stop_step=step, evaluation__documents=1, sharding__strategy="full_shard", **DEVICE))
        self.assert_on_curve("curve", last=len(ORDERS))


if __name__ == "__main__":
    unittest.main()
