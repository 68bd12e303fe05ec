"""The ranks of benchmarks/memory.py: one process group, and in each block a trainer or a schedule of torch, made anew."""

import argparse
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.live_memory import PeakMemory
from benchmarks.paired import shuffled_rounds
from benchmarks.ranks import run_as_rank
from benchmarks.step_sides import run_torch_schedule
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.process_group import join, leave
from pptoolkit.errors import TrainingError
from pptoolkit.models import mlp_layers, next_token_loss
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer

SIDES, COUNTS, RESULT = ("pptoolkit", "torch"), (8, 64), "result.json"
_SAMPLES, _TOKENS, _VOCABULARY, _WIDTH, _DEPTH = 4, 64, 64, 128, 6
_SEED, _STEPS = 0, 2  # the first step is not measured
_SAME_LOSS = 1e-4


def label(side: str, micro_batches: int) -> str:
    return f"{side} {micro_batches}"


def model() -> list[Layer]:
    """Return layers of few operations, each of which keeps far more than the micro-batch itself has."""
    typed = {"dtype": torch.float32}
    embed = Layer("embed", nn.Embedding, _VOCABULARY, _WIDTH, **typed)
    return [embed, *mlp_layers(_WIDTH, _DEPTH, **typed), Layer("head", nn.Linear, _WIDTH, _VOCABULARY, **typed)]


def batch(micro_batches: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(_SEED)
    ids = torch.randint(_VOCABULARY, (_SAMPLES * micro_batches, _TOKENS + 1), generator=draw)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def batch_bytes(micro_batches: int) -> int:
    return sum(part.nbytes for part in batch(micro_batches))


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01)


class _OneBatch:
    """A data set that hands out the same batch at every step, and says when a step begins."""

    def __init__(self, pair: tuple[Tensor, Tensor], begins: Callable[[], None]) -> None:
        self._pair, self._begins = pair, begins

    def __len__(self) -> int:
        return _STEPS * len(self._pair[0])

    def batch(self, _indices: Any) -> tuple[Tensor, Tensor]:
        self._begins()
        return self._pair


def train_pptoolkit(micro_batches: int, begins: Callable[[], None], run: Path) -> float:
    """Train with our trainer as users get it: telemetry, layer sampling and metrics endpoint are on."""
    pair, layers = batch(micro_batches), model()
    with Trainer(
        layers,
        loss=next_token_loss,
        optimizer=make_optimizer,
        plan=Plan(cuts=equal_layer_cuts(len(layers), dist.get_world_size()), schedule="1f1b", micro_batches=micro_batches),
        run=run,
        seed=_SEED,
        telemetry=TelemetrySettings(port=0),
        progress=False,
    ) as trainer:
        return trainer.fit(_OneBatch(pair, begins), batch_size=len(pair[0]), steps=_STEPS).loss


def train_torch(micro_batches: int, begins: Callable[[], None], _run: Path) -> float:
    """Train with torch's own 1F1B, told to keep neither outputs nor anything else that nobody asks for."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, ranks = dist.get_rank(), dist.get_world_size()
    layers = model()
    mine = Plan(cuts=equal_layer_cuts(len(layers), ranks)).stage_layers(len(layers))[rank]
    module = nn.Sequential(*(layers[i].build(_SEED) for i in mine))
    stage = PipelineStage(module, rank, ranks, torch.device("cpu"))
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=next_token_loss)
    optimizer = make_optimizer(module.parameters())
    inputs, targets = batch(micro_batches)
    return run_torch_schedule(schedule, optimizer, inputs, targets, steps=_STEPS, begins=begins)


_TRAIN: dict[str, Callable[[int, Callable[[], None], Path], float]] = dict(zip(SIDES, (train_pptoolkit, train_torch), strict=True))


def peak_of(side: str, micro_batches: int, run: Path) -> tuple[int, int, float]:
    """Return this rank's peak of live tensor bytes beside the batch, that of resident bytes, and the last loss."""
    gc.collect()  # what an earlier block left in circles is not this one's
    steps = iter(range(_STEPS))
    with PeakMemory() as memory:

        def begins() -> None:
            if next(steps) == 1:
                memory.begin()

        loss = _TRAIN[side](micro_batches, begins, run)
        return memory.live_bytes - batch_bytes(micro_batches), memory.resident_bytes, loss


def _alternate(options: argparse.Namespace) -> None:
    world = join()
    kinds = {label(side, count): (side, count) for side in SIDES for count in COUNTS}
    found: dict[str, dict[str, list[list[int]]]] = {what: {name: [] for name in kinds} for what in ("live", "resident")}
    losses: dict[int, float] = {}
    for kind in kinds.values():  # the first block of a kind also loads code
        peak_of(*kind, options.folder / "runs" / "warm-up")
    for order in shuffled_rounds(list(kinds), options.rounds, seed=options.seed):
        for name in order:
            side, count = kinds[name]
            live, resident, loss = peak_of(side, count, options.folder / "runs" / side)
            if abs(losses.setdefault(count, loss) - loss) > _SAME_LOSS * abs(loss):
                raise TrainingError(
                    f"{name} micro-batches ended with loss {loss:.7f}, another block with {losses[count]:.7f}: not the same"
                )
            gathered: list[Any] = [None] * world.ranks
            dist.all_gather_object(gathered, (live, resident))
            for what, values in zip(found.values(), zip(*gathered, strict=True), strict=True):
                what[name].append(list(values))
    if world.rank == 0:
        (options.folder / RESULT).write_text(json.dumps(found))
    leave(world)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    run_as_rank(options.folder, lambda: _alternate(options))


if __name__ == "__main__":
    main()
