"""The ranks of benchmarks/schedules.py: one process group, and a new trainer for every run."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.paired import shuffled_rounds
from benchmarks.ranks import run_as_rank
from pptoolkit.engine.clocks import LinkProbe
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.process_group import join, leave
from pptoolkit.errors import TrainingError
from pptoolkit.models import sleeping_layers
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.planner.own_times import simulate_own_times
from pptoolkit.planner.predict import Predictor
from pptoolkit.run import Run
from pptoolkit.schedule import build_schedule
from pptoolkit.simulator import equal_costs, simulate
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer

RESULT = "result.json"
_WIDTH, _SAMPLES = 16, 2  # samples of a micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What every schedule has to do: equal layers whose forward, input gradient and weight gradient take equally long."""

    layers: int = 8
    forward_s: float = 0.004  # of a layer and micro-batch
    micro_batches: int = 8

    @property
    def compute_s(self) -> float:
        """Compute of a step, all ranks together."""
        return 3 * self.forward_s * self.layers * self.micro_batches

    def layer_list(self) -> list[Layer]:
        forward = [self.forward_s] * self.layers
        return sleeping_layers(forward, [2 * f for f in forward], weight_s=forward, width=_WIDTH, dtype=torch.float32)

    def plan(self, schedule: str, ranks: int) -> Plan:
        stages = build_schedule(schedule, ranks=ranks, micro_batches=self.micro_batches).stages
        return Plan(cuts=equal_layer_cuts(self.layers, stages), schedule=schedule, micro_batches=self.micro_batches)

    def ideal_step_s(self, schedule: str, ranks: int) -> float:
        """Return the time of a step in which nothing but the layers takes time."""
        built = build_schedule(schedule, ranks=ranks, micro_batches=self.micro_batches)
        part_s = self.forward_s * self.layers / built.stages
        costs = equal_costs(built.stages, forward_s=part_s, backward_input_s=part_s, backward_weight_s=part_s)
        return simulate(built, costs).step_time_s

    def as_argument(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run.

    Args:
        own_times_error: Simulated over measured step less 1, each step with its own op times; the median.
        medians_error: The same of the median step, simulated from the medians of the ops.
        measured_s: Median step, seconds.
        ideal_s: The step in which nothing but the layers takes time, seconds.
    """

    own_times_error: float
    medians_error: float
    measured_s: float
    ideal_s: float


class _OneBatch:
    """A data set that hands out the same batch at every step."""

    def __init__(self, pair: tuple[Tensor, Tensor]) -> None:
        self._pair = pair

    def __len__(self) -> int:
        return 1000 * len(self._pair[0])  # an epoch's order is drawn once, not at every step

    def batch(self, _indices: Any) -> tuple[Tensor, Tensor]:
        return self._pair


def train(work: Work, plan: Plan, *, steps: int, run: Path) -> Path:
    """Train and return the run's directory."""
    draw = torch.Generator().manual_seed(0)
    samples = _SAMPLES * work.micro_batches
    pair = torch.randn(samples, _WIDTH, generator=draw), torch.rand(samples, _WIDTH, generator=draw)
    with Trainer(
        work.layer_list(),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        plan=plan,
        run=run,
        telemetry=TelemetrySettings(port=0),
        progress=False,
        link_probe=LinkProbe(payload_bytes=1 << 12, repeats=3),  # messages are small, and links are measured in the steps themselves
    ) as trainer:
        trainer.fit(_OneBatch(pair), batch_size=samples, steps=steps)
    dist.barrier()  # every rank has written its last events
    return trainer.run.path


def read(path: Path, ideal_s: float) -> Outcome:
    """Return what a run's own op times say of its step.

    Raises:
        TrainingError: If the run does not tell.
    """
    run = Run.open(path)
    step = run.measured_step()
    if step is None or step.layers.missing:
        raise TrainingError(
            f"the run at {path} cannot be simulated: {'; '.join(step.layers.missing) if step else 'it has no usable steps'}"
        )
    return Outcome(
        own_times_error=float(np.median(simulate_own_times(run.steady(), step).error_ratios)),
        medians_error=Predictor(step).replay_error_ratio,
        measured_s=step.step_time.median,
        ideal_s=ideal_s,
    )


def _alternate(schedules: Sequence[str], work: Work, options: argparse.Namespace) -> None:
    world = join()
    found: dict[str, list[dict[str, float]]] = {schedule: [] for schedule in schedules}
    train(work, work.plan("1f1b", world.ranks), steps=2, run=options.folder / "runs" / "warm-up")  # a process's first run also loads code
    for number, order in enumerate(shuffled_rounds(schedules, options.rounds, seed=options.seed)):
        for schedule in order:
            path = train(work, work.plan(schedule, world.ranks), steps=options.steps, run=options.folder / "runs" / f"{schedule}-{number}")
            if world.rank == 0:
                found[schedule].append(asdict(read(path, work.ideal_step_s(schedule, world.ranks))))
    if world.rank == 0:
        (options.folder / RESULT).write_text(json.dumps(found))
    leave(world)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--schedules", nargs="+", required=True)
    parser.add_argument("--work", type=json.loads, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    options = parser.parse_args()
    run_as_rank(options.folder, lambda: _alternate(options.schedules, Work(**options.work), options))


if __name__ == "__main__":
    main()
