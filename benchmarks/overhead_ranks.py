"""The ranks of benchmarks/overhead.py: one process group, and a new trainer for every block, with or without telemetry."""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.blocks import seconds_per_step
from benchmarks.paired import shuffled_rounds
from benchmarks.ranks import run_as_rank
from benchmarks.step_sides import Work
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.process_group import join, leave
from pptoolkit.models import GPTConfig, gpt_layers, next_token_loss
from pptoolkit.plan import Plan
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer

ON, OFF, RESULT = "on", "off", "result.json"
_MICRO_BATCHES = 8
_UNMEASURED = 10  # the first step infers shapes; telemetry starts, looks around and writes its first file, once in a training


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something to train on 2 ranks, with micro-batches of about 10 ms (forward and backward of one stage)."""

    layers: Sequence[Layer]
    cuts: tuple[int, ...]
    loss: Callable[[Any, Any], Tensor]
    batch: tuple[Tensor, Tensor]


def sleeping_work(*, rounds: int, block_steps: int) -> Work:
    """Return the sleeping layers as work for other engines too: two times four of them, 9.6 ms a stage and micro-batch."""
    return Work(layers=8, forward_s=0.0008, backward_s=0.0016, micro_batches=_MICRO_BATCHES, rounds=rounds, block_steps=block_steps)


def sleeping() -> Workload:
    """Layers of known time that leave the processor alone: what telemetry adds to the step's critical path."""
    work = sleeping_work(rounds=1, block_steps=1)
    return Workload(layers=work.layer_list(), cuts=(work.layers // 2,), loss=nn.functional.mse_loss, batch=work.batch())


def gpt() -> Workload:
    """A real model, which needs the processor that telemetry's threads also need."""
    draw = torch.Generator().manual_seed(0)
    config = GPTConfig(vocabulary=512, width=64, depth=6, heads=4, sequence=64)
    ids = torch.randint(config.vocabulary, (4 * _MICRO_BATCHES, config.sequence + 1), generator=draw)
    return Workload(layers=gpt_layers(config, dtype=torch.float32), cuts=(4,), loss=next_token_loss, batch=(ids[:, :-1], ids[:, 1:]))


WORKLOADS: dict[str, Callable[[], Workload]] = {"sleeping layers": sleeping, "gpt": gpt}


class TimedBatches:
    """A data set that hands out the same batch at every step and notes when it is asked."""

    def __init__(self, batch: tuple[Tensor, Tensor]) -> None:
        self._batch = batch
        self.times_ns: list[int] = []

    def __len__(self) -> int:
        return 1000 * len(self._batch[0])  # an epoch's order is drawn once, not at every step

    def batch(self, _indices: Any) -> tuple[Tensor, Tensor]:
        self.times_ns.append(time.monotonic_ns())
        return self._batch


def train_block(work: Workload, *, telemetry: bool, steps: int, run: Path) -> tuple[float, float]:
    """Train a second of unmeasured and ``steps`` measured steps; return seconds per step, and per micro-batch in the last step."""
    batches = TimedBatches(work.batch)
    with Trainer(
        work.layers,
        loss=work.loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        plan=Plan(cuts=work.cuts, schedule="1f1b", micro_batches=_MICRO_BATCHES),
        run=run,
        telemetry=TelemetrySettings(enabled=telemetry, port=0),
        sample_layers_every=1 if telemetry else 0,
        progress=False,
    ) as trainer:
        # One more step, whose beginning is the end of the last measured one.
        trainer.fit(batches, batch_size=len(work.batch[0]), steps=_UNMEASURED + steps + 1)
        gathered: list[Any] = [None] * trainer.world.ranks
        dist.all_gather_object(gathered, batches.times_ns)
        return seconds_per_step([times[_UNMEASURED - 1 :] for times in gathered]), trainer.pipeline.compute_s / _MICRO_BATCHES


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workload", choices=list(WORKLOADS), required=True)
    parser.add_argument("--pairs", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    run_as_rank(options.folder, lambda: _alternate(options))


def _alternate(options: argparse.Namespace) -> None:
    world = join()
    work = WORKLOADS[options.workload]()
    times: dict[str, list[float]] = {ON: [], OFF: []}
    micro_batch_s: list[float] = []
    for warm_up in (True, False):  # the first block of a process also loads code and grows memory
        train_block(work, telemetry=warm_up, steps=3, run=options.folder / "runs" / "warm-up")
    for order in shuffled_rounds([ON, OFF], options.pairs, seed=options.seed):
        for side in order:
            step_s, micro_s = train_block(work, telemetry=side == ON, steps=options.steps, run=options.folder / "runs" / side)
            times[side].append(step_s)
            micro_batch_s.append(micro_s)
    if world.rank == 0:
        (options.folder / RESULT).write_text(json.dumps({**times, "micro_batch_s": micro_batch_s}))
    leave(world)


if __name__ == "__main__":
    main()
