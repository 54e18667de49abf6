"""Whole runs of several ranks on stand-in GPUs: which GPU a rank takes and what fits on one that is shared, collectives over MPI, what NCCL is told,
and checkpoints that other ranks go on from."""
import contextlib
import json
import shutil
import unittest

import numpy as np

from device_case import DEVICE, DeviceCase, emulated, reference, support
from training_case import TrainingCase

NAME = "llama_biases"
OVER_MPI = {**DEVICE, "communication__backend": "mpi"}


class RanksCase(DeviceCase):
    def trains(self, run="run", ranks=2, strategy="full_shard", steps=2, **keys):
        """As PyTorch does, in fp32; returns the lines of its steps."""
        lines = self.train(NAME, support.FIXTURES / NAME / "hf", run=run, ranks=ranks, strategy=strategy, steps=steps, **{**DEVICE, **keys})
        self.assert_trains_as_pytorch(NAME, lines)
        return lines

    def fails(self, code, ranks=2, **keys):
        """The error's text of a run that does not get to its first step."""
        keys = {"device__kind": "cuda", "precision__compute": "fp32", **keys}
        done = support.run("train", f"--model.weights={support.FIXTURES / NAME / 'hf'}", f"--data.tokens={self.write_tokens(NAME)}",
                           "--run.steps=1", f"--run.directory={self.dir / 'failed'}",
                           *(f"--{key.replace('__', '.')}={value}" for key, value in keys.items()), ranks=ranks, expect=code)
        self.assertFalse((self.dir / "failed" / "metrics.jsonl").exists())
        return done.stderr

    def metrics(self, run, event):
        lines = [json.loads(line) for line in (self.dir / run / "metrics.jsonl").read_text().splitlines()]
        return [line for line in lines if line["event"] == event]


class Nccl(RanksCase):
    def test_variables_of_the_deck_reach_nccl_before_its_first_communicator(self):
        """NCCL's stand-in makes no communicator where it cannot read the protocol that is asked for."""
        with emulated():
            self.trains(nccl__NCCL_PROTO="Simple")
            self.assertRegex(self.said.stdout, r"NCCL \d+\.\d+\.\d+; from the deck: NCCL_PROTO=Simple")
            self.assertRegex(self.fails(5, nccl__NCCL_PROTO="Simpel"), "ncclCommInitRankConfig.*invalid usage")


class OverMpi(RanksCase):
    def test_strategies_on_shared_and_on_own_gpus(self):
        for i, strategy in enumerate(("no_shard", "shard_opt", "shard_grad_op", "hierarchical_shard")):
            for devices in (1, 8):
                nodes = {"sharding__node_size": 2} if strategy.startswith("h") else {}
                ranks = 4 if nodes else 2 + i % 2
                with self.subTest(f"{strategy}, {ranks} ranks, {devices} GPUs"), emulated(devices=devices):
                    self.trains(f"{strategy}-{devices}", ranks, strategy, **nodes, **OVER_MPI)

    def test_sixteen_bits_on_the_wire_between_uneven_shares(self):
        """The same bits whichever GPUs they are, and near what fp32 trains."""
        numbers, _ = reference(NAME)
        found = []
        for devices in (1, 8):
            with emulated(devices=devices):
                lines = self.train(NAME, support.FIXTURES / NAME / "hf", run=str(devices), ranks=3, strategy="shard_grad_op", steps=2,
                                   sharding__shares="3,0,2", precision__reduce="bf16", **OVER_MPI)
            found.append([(line["loss"], line["grad_norm"]) for line in lines])
        self.assertEqual(found[0], found[1])
        for (loss, norm), expected_loss, expected_norm in zip(found[0], numbers["loss"], numbers["grad_norm"], strict=False):
            self.assertLess(abs(loss - expected_loss), 1e-3 * expected_loss)
            self.assertLess(abs(norm - expected_norm), 1e-2 * expected_norm)
            self.assertGreater(abs(norm - expected_norm), 2e-5 * expected_norm, "what goes over the wire is rounded")


class Gpus(RanksCase):
    def test_ranks_that_share_a_gpu_are_planned_together(self):
        def planned(run, **emulation):
            with emulated(**emulation):
                self.trains(run, steps=1, **OVER_MPI)
            return self.metrics(run, "start")[0]["planned_bytes"]

        both, one = planned("shared", devices=1), planned("apart")
        self.assertAlmostEqual(both / one, 2, delta=1e-3)
        planned("tight", devices=1, memory_bytes=int(1.02 * both))  # 1/128 stays free
        with emulated(devices=1, memory_bytes=int(0.75 * both)):
            self.assertRegex(self.fails(5, communication__backend="mpi"), f"{both / 2**20:.1f} MiB of memory are needed on cuda")
        planned("alone", memory_bytes=int(0.75 * both))

    @contextlib.contextmanager
    def shown(self, visible):
        """Each rank's CUDA_VISIBLE_DEVICES, by its local rank, as launchers set it."""
        folder = self.dir / "shown"
        folder.mkdir(exist_ok=True)
        program = folder / "sherd"
        cases = "".join(f"{rank}) export CUDA_VISIBLE_DEVICES={gpus};;\n" for rank, gpus in enumerate(visible))
        program.write_text(f'#!/bin/sh\ncase $OMPI_COMM_WORLD_LOCAL_RANK in\n{cases}esac\nexec {support.BUILD / "sherd"} "$@"\n')
        program.chmod(0o755)
        before, support.BUILD = support.BUILD, folder
        try:
            yield
        finally:
            support.BUILD = before

    def test_a_rank_takes_the_gpu_of_its_local_rank_or_the_one_it_is_shown(self):
        """NCCL takes no two ranks of one GPU. The stand-in's GPUs differ by temperature, 60 degrees and their number; the hottest is told."""
        for visible, hottest in ((("6", "2"), 66), (("0,7,3", "0,7,3"), 67)):
            run = "-".join(visible)
            with self.subTest(visible), emulated(), self.shown(visible):
                self.trains(run)
                self.assertEqual(self.metrics(run, "device")[0]["temperature_c"], hottest)

    def test_a_gpu_that_both_ranks_are_shown_is_an_error(self):
        with emulated(), self.shown(("3", "3")):
            self.assertRegex(self.fails(3), r"ranks 0 and 1 \(host \S+\) would share the GPU at 0000:40:00.0")


class Checkpoints(RanksCase):
    state, assert_same_bits = TrainingCase.state, TrainingCase.assert_same_bits

    def numbers(self, lines):
        return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]

    def test_a_run_goes_on_from_its_checkpoint(self):
        """To the same bits on the same ranks, and within rounding on others with another strategy."""
        with emulated():
            whole = self.trains("whole", steps=3)
            self.trains("same", steps=3, run__stop_step=2)
            shutil.copytree(self.dir / "same", self.dir / "others", symlinks=True)
            same = self.trains("same", steps=3)
            others = self.trains("others", steps=3, ranks=3, strategy="shard_grad_op", sharding__shares="2,0,1")
        self.assertEqual([len(self.metrics(run, "resume")) for run in ("whole", "same", "others")], [0, 1, 1])
        self.assertEqual(self.numbers(same), self.numbers(whole))
        self.assertEqual(self.numbers(others[:2]), self.numbers(whole[:2]))
        found, expected = self.state("others"), self.state("whole")
        self.assert_same_bits(self.state("same"), expected)
        self.assertEqual(sorted(found), sorted(expected))
        for key, array in expected.items():
            self.assertLess(np.abs(found[key] - array).max(), 2e-5 * np.abs(array).max(), key)


if __name__ == "__main__":
    unittest.main()
