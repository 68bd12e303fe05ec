"""Cutting a running training anew: rank 0 looks and decides, every rank hears of it, all of them move layers, run.json tells.

Looking is the planner's (:mod:`pptoolkit.planner.rebalance`), moving the engine's (:mod:`pptoolkit.engine.relocation`); here is what ties
them to a trainer. Both happen between two steps, at steps that all ranks know beforehand, so that no step asks whether it is time.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch.distributed as dist

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.optimisation import Optimisation
from pptoolkit.engine.relocation import check_relocatable, relocate
from pptoolkit.engine.step_end import sum_over_ranks
from pptoolkit.engine.training_step import TrainingStep
from pptoolkit.errors import ConfigError
from pptoolkit.plan import Plan
from pptoolkit.planner.compare import PredictionCheck
from pptoolkit.planner.rebalance import AutoRebalance, Decision, PlanWatch, describe_achievement
from pptoolkit.run_setup import RunSetup
from pptoolkit.telemetry import Op, RunDirectory
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.session import RankTelemetry, Telemetry

Say = Callable[[str], None]
Build = Callable[[Sequence[Layer], Plan], TrainingStep]


class Watch(Protocol):
    """What decides, on rank 0; :class:`pptoolkit.planner.rebalance.PlanWatch` does."""

    def look(self, *, step: int, steps: int) -> Decision: ...

    def note_moving(self, seconds: float) -> None: ...

    def achieved(self) -> PredictionCheck | None: ...


class Rebalancing(Protocol):
    """What the training loop asks between two steps."""

    def go_on(self, training: TrainingStep, *, step: int, steps: int, say: Say) -> TrainingStep:
        """Return what to train with from ``step`` on: ``training`` itself, or the same training under another plan."""

    def end(self, say: Say) -> None:
        """Say what became of the last re-cut, or why there was none; after the last step, with all events on disk."""


class NoRebalancing:
    """The plan stays."""

    def go_on(self, training: TrainingStep, *, step: int, steps: int, say: Say) -> TrainingStep:
        return training

    def end(self, say: Say) -> None:
        """Nothing was promised."""


class Rebalancer:
    """Looks now and then, and cuts anew where it pays. Made on every rank.

    Args:
        settings: When to look.
        run: The run directory.
        setup: Writes run.json.
        telemetry: This rank's.
        layers: The whole model.
        build: Makes this rank's part of the training.

    Raises:
        ConfigError: On every rank, if the hosts do not share the run directory.
    """

    def __init__(
        self, settings: AutoRebalance, *, run: RunDirectory, setup: RunSetup, telemetry: Telemetry, layers: Sequence[Layer], build: Build
    ) -> None:
        self._run, self._setup, self._telemetry, self._layers, self._build = run, setup, telemetry, layers, build
        (directories,) = sum_over_ranks(float(setup.keeper))
        if directories > 1:
            raise ConfigError(
                f"auto_rebalance reads the events of all ranks, but this run has a directory on each of {directories:.0f} hosts; "
                "put the run on a disk that all hosts share, or train without it"
            )
        self._watch: Watch | None = PlanWatch(run, settings) if setup.keeper else None
        self._next_step = settings.every
        self._recuts, self._refusal = 0, ""

    def go_on(self, training: TrainingStep, *, step: int, steps: int, say: Say) -> TrainingStep:
        if step < self._next_step or step >= steps or self._setup.plan.stages == 1:
            return training
        decision = self._agree(step, steps)
        self._next_step = max(decision.next_step, step + 1)
        if decision.plan is None:
            self._refusal = decision.sentence
            return training
        say(decision.sentence)
        return self._recut(training, decision, step)

    def end(self, say: Say) -> None:
        if not self._recuts:
            if self._refusal:
                say(f"not cut anew; at the last look, {self._refusal}")
            return
        dist.barrier()  # every rank has flushed its events
        found = self._watch.achieved() if self._watch is not None else None
        if found is not None:
            say(describe_achievement(found, self._run.read_info()))

    def _agree(self, step: int, steps: int) -> Decision:
        self._telemetry.flush()
        dist.barrier()
        box: list[Any] = [self._look(step, steps) if self._watch is not None else None]
        dist.broadcast_object_list(box, src=0)
        decision: Decision = box[0]
        return decision

    def _look(self, step: int, steps: int) -> Decision:
        assert self._watch is not None
        try:
            return self._watch.look(step=step, steps=steps)
        except Exception as error:
            # Nobody trains on while rank 0 fails at what training does not need.
            return Decision(plan=None, sentence=f"step {step}: cannot plan anew: {type(error).__name__}: {error}", next_step=steps)

    def _recut(self, training: TrainingStep, decision: Decision, step: int) -> TrainingStep:
        assert decision.plan is not None
        plan, recorder = decision.plan, self._telemetry.recorder
        began_s = time.monotonic()
        # As at the start: what was never run before is built, and its shapes are seen for the first time.
        with recorder.span(Op.STARTUP):
            relocated = relocate(training, self._layers, build=lambda layers: self._build(layers, plan))
        self._recuts += 1
        seconds = time.monotonic() - began_s
        if self._watch is not None:
            self._watch.note_moving(seconds)
        self._setup.recut(self._run, plan, step=step, seconds=seconds, moved_bytes=relocated.moved_bytes, sentence=decision.sentence)
        dist.barrier()  # run.json tells of the plan before the first of its events is written
        self._show_plan()
        return relocated.training

    def _show_plan(self) -> None:
        """Let the metrics name the plan that holds; of the metric that names it there is one series, as before."""
        if isinstance(self._telemetry, RankTelemetry):
            series = self._telemetry.metrics.series
            layout = RankLayout.from_info(self._run.read_info(), dist.get_rank())
            series.gauge("run_info", "What runs; always 1.", ("schedule", "stages", "micro_batches", "plan"))
            series.set("run_info", 1, layout.schedule, str(len(layout.stage_to_rank)), str(layout.micro_batches), layout.plan)


def make_rebalancing(asked: AutoRebalance | bool, **named: Any) -> Rebalancing:
    """Return what was asked for; ``named`` are the arguments of :class:`Rebalancer`."""
    if not asked:
        return NoRebalancing()
    return Rebalancer(asked if isinstance(asked, AutoRebalance) else AutoRebalance(), **named)


def check_rebalance(optimisation: Optimisation, *, replicas: int, telemetry: bool, sample_layers_every: int) -> None:
    """Refuse, before a training starts, what auto_rebalance cannot do.

    Raises:
        ConfigError: Naming what is in the way.
    """
    check_relocatable(optimisation, replicas)
    if not telemetry:
        raise ConfigError("auto_rebalance decides by what telemetry measures, and telemetry is off; switch it on, or train without it")
    if not sample_layers_every:
        raise ConfigError(
            "auto_rebalance needs the cost of each layer, and sample_layers_every=0 times none; set it to 1 or more, or train without it"
        )
