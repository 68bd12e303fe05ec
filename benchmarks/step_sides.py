"""The sides of benchmarks/step.py and the peers of benchmarks/overhead.py: the same sleeping layers, trained by each engine in the
way its own guide shows, with nothing that looks on or with its own means to do so.

Runs as ``python -m benchmarks.step_sides`` under torchrun, in the interpreter that has the engine.
"""

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.blocks import Gate
from benchmarks.ranks import run_as_rank
from pptoolkit.engine.layers import Layer
from pptoolkit.errors import TrainingError
from pptoolkit.models.sleeping import sleeping_layers
from pptoolkit.plan import Plan, equal_layer_cuts

OURS, TORCH, DEEPSPEED = "pptoolkit", "torch", "deepspeed"
TORCH_PROFILED, DEEPSPEED_LOGGED = "torch-profiled", "deepspeed-logged"
_WIDTH, _SAMPLES_PER_MICRO_BATCH, _SEED, _LEARNING_RATE = 32, 4, 0, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every side has to do, the same for all."""

    layers: int = 8
    forward_s: float = 0.005  # of a layer and micro-batch
    backward_s: float = 0.010
    micro_batches: int = 8
    rounds: int  # blocks of steps, each begun by an unmeasured one
    block_steps: int  # measured ones in a block

    @property
    def steps(self) -> int:
        """Return how many there are in all; in the last one nobody looks any more."""
        return self.rounds * (self.block_steps + 1) + 1

    def ideal_step_s(self, ranks: int) -> float:
        """Return the time of a step in which nothing but the layers takes time: 1F1B's own bubble is in it."""
        per_stage_s = self.layers / ranks * (self.forward_s + self.backward_s)
        return (self.micro_batches + ranks - 1) * per_stage_s

    @property
    def samples(self) -> int:
        return self.micro_batches * _SAMPLES_PER_MICRO_BATCH

    def layer_list(self) -> list[Layer]:
        return sleeping_layers([self.forward_s] * self.layers, [self.backward_s] * self.layers, width=_WIDTH, dtype=torch.float32)

    def batch(self) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(_SEED)
        return torch.randn(self.samples, _WIDTH, generator=draw), torch.rand(self.samples, _WIDTH, generator=draw)


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_LEARNING_RATE)


class GatedBatches:
    """A data set that hands out the same batch at every step, after the gate."""

    def __init__(self, work: Work, gate: Gate) -> None:
        self._batch, self._gate = work.batch(), gate

    def __len__(self) -> int:
        return 1000 * len(self._batch[0])  # an epoch's order is drawn once, not at every step

    def batch(self, _indices: Any) -> tuple[Tensor, Tensor]:
        self._gate.step()
        return self._batch


def train_pptoolkit(work: Work, gate: Gate, folder: Path) -> float:
    """Train with our trainer as users get it: telemetry, layer sampling and metrics endpoint are on."""
    from pptoolkit.telemetry.settings import TelemetrySettings
    from pptoolkit.trainer import Trainer

    ranks = int(os.environ["WORLD_SIZE"])
    plan = Plan(cuts=equal_layer_cuts(work.layers, ranks), schedule="1f1b", micro_batches=work.micro_batches)
    with Trainer(
        work.layer_list(),
        loss=nn.functional.mse_loss,
        optimizer=make_optimizer,
        plan=plan,
        run=folder / "run",
        seed=_SEED,
        telemetry=TelemetrySettings(port=0),
    ) as trainer:
        batches = GatedBatches(work, gate)
        return trainer.fit(batches, batch_size=work.samples, steps=work.steps).loss


def train_torch(work: Work, gate: Gate, _folder: Path) -> float:
    """Train with torch's own 1F1B. It hands the loss to the last rank only: less work than the other two do."""
    return _train_torch(work, gate, ends=_nothing)


def train_torch_profiled(work: Work, gate: Gate, folder: Path) -> float:
    """Train with torch's own 1F1B and torch.profiler, which records every measured step and writes a trace of every block of them."""
    from torch.profiler import ProfilerActivity, profile, schedule, tensorboard_trace_handler

    # It warms up in the step with which a block begins, which is not measured: the written trace has the measured steps, no more.
    cycle = schedule(wait=0, warmup=1, active=work.block_steps)
    traces = folder / "traces"
    with profile(activities=[ProfilerActivity.CPU], schedule=cycle, on_trace_ready=tensorboard_trace_handler(str(traces))) as profiler:
        loss = _train_torch(work, gate, ends=profiler.step)
    written = len(list(traces.glob(f"*_{os.getpid()}.*.json")))
    if written < work.rounds:  # at its end it also writes that of the last step, which belongs to no block
        raise TrainingError(f"torch.profiler wrote {written} traces of {work.rounds} blocks: what it costs was not measured")
    return loss


def _nothing() -> None:
    """Look at nothing."""


def _train_torch(work: Work, gate: Gate, *, ends: Callable[[], None]) -> float:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = work.layer_list()
    size = work.layers // ranks
    module = nn.Sequential(*(layer.build(_SEED) for layer in layers[rank * size : (rank + 1) * size]))
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, work.micro_batches, loss_fn=nn.functional.mse_loss)
    optimizer = make_optimizer(module.parameters())
    inputs, targets = work.batch()
    return run_torch_schedule(schedule, optimizer, inputs, targets, steps=work.steps, begins=gate.step, ends=ends)


def run_torch_schedule(
    schedule: Any,
    optimizer: torch.optim.Optimizer,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int,
    begins: Callable[[], None],
    ends: Callable[[], None] = _nothing,
) -> float:
    """Train the same batch ``steps`` times as torch's guide shows; return the last loss on every rank.

    Args:
        schedule: One of torch's, told to keep neither outputs nor anything else that nobody asks for.
        optimizer: Of this rank's stage.
        inputs: The batch, for the first stage.
        targets: Its targets, for the last one.
        steps: How often.
        begins: Called before each step.
        ends: Called after each step.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses: list[Tensor] = []
    for _ in range(steps):
        begins()
        if rank == 0:
            schedule.step(inputs, return_outputs=False)
        elif rank == ranks - 1:
            schedule.step(target=targets, losses=losses, return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        optimizer.step()
        optimizer.zero_grad()
        ends()
    box = [sum(loss.item() for loss in losses) / len(losses) if losses else None]
    dist.broadcast_object_list(box, src=ranks - 1)
    return float(box[0] or 0.0)


def train_deepspeed(work: Work, gate: Gate, _folder: Path) -> float:
    """Train with DeepSpeed's pipeline engine."""
    return _train_deepspeed(work, gate, {"steps_per_print": 1 << 30})


def train_deepspeed_logged(work: Work, gate: Gate, _folder: Path) -> float:
    """Train with DeepSpeed's pipeline engine, which times its parts and its messages, and prints the former every ten steps."""
    looks = {"steps_per_print": 10, "wall_clock_breakdown": True, "comms_logger": {"enabled": True, "prof_all": True}}
    loss = _train_deepspeed(work, gate, looks)
    from deepspeed.comm.comm import comms_logger

    if not comms_logger.comms_dict:
        raise TrainingError("DeepSpeed's comms logger has seen no message: what it costs was not measured")
    return loss


def _train_deepspeed(work: Work, gate: Gate, looks: dict[str, Any]) -> float:
    import deepspeed
    from deepspeed.pipe import PipelineModule

    # An optional kernel for all-reduces, of which one pipeline has none. It would be compiled here, and needs a compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(dist_backend="gloo")
    modules = [layer.build(_SEED) for layer in work.layer_list()]
    model = PipelineModule(modules, num_stages=dist.get_world_size(), loss_fn=nn.functional.mse_loss, partition_method="uniform")
    parameters = [p for p in model.parameters() if p.requires_grad]
    config = {
        "train_batch_size": work.samples,
        "train_micro_batch_size_per_gpu": _SAMPLES_PER_MICRO_BATCH,
        "gradient_accumulation_steps": work.micro_batches,
        **looks,
    }
    engine, *_ = deepspeed.initialize(model=model, model_parameters=parameters, optimizer=make_optimizer(parameters), config=config)
    # With wall_clock_breakdown the pipeline engine of 0.19.8 times each backward itself, and lets a hook that was made for other engines
    # start the same timers once more, which ends the training with "timer has already been started". It is timed once here.
    engine.engine_timers.backward_timers.clear()
    engine.engine_timers.backward_inner_timers.clear()
    inputs, targets = (t.split(_SAMPLES_PER_MICRO_BATCH) for t in work.batch())
    loss = torch.tensor(0.0)
    for _ in range(work.steps):
        gate.step()
        loss = engine.train_batch(data_iter=iter(zip(inputs, targets, strict=True)))
    return float(loss)


SIDES: dict[str, Callable[[Work, Gate, Path], float]] = {
    OURS: train_pptoolkit,
    TORCH: train_torch,
    TORCH_PROFILED: train_torch_profiled,
    DEEPSPEED: train_deepspeed,
    DEEPSPEED_LOGGED: train_deepspeed_logged,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--side", choices=list(SIDES), required=True)
    parser.add_argument("--address", type=Path, required=True)
    parser.add_argument("--work", type=json.loads, required=True)
    options = parser.parse_args()

    def work() -> None:
        gate = Gate(options.address, job=options.side, rank=int(os.environ["RANK"]))
        loss = SIDES[options.side](Work(**options.work), gate, options.folder)
        gate.finish(loss=loss, torch=torch.__version__)

    run_as_rank(options.folder, work)


def as_argument(work: Work) -> str:
    """Return ``work`` as the ``--work`` option."""
    return json.dumps(asdict(work))


if __name__ == "__main__":
    main()
