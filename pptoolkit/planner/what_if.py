"""What if: a run's step with other cuts, another schedule, other micro-batches, faster links, a slower rank, recompute; by simulation.

    what_if(run.measured_step(), WhatIf(cuts=(3, 7), schedule="zb-h1", link_factor=2.0))

The run itself is replayed first. By how much that misses its measured step stands beside every answer, and past the limit none is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pptoolkit.errors import InputError, PlanError, counted
from pptoolkit.plan import Plan
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.planner.predict import PredictedStep, Predictor
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.schedule import Schedule, build_schedule, check_trains
from pptoolkit.simulator import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What to change; what is None or empty stays as it is.

    Args:
        cuts: Other cut points. Where a schedule needs another number of stages and none are given, the fairest ones are taken.
        schedule: Another schedule.
        micro_batches: Another number of micro-batches, the batch staying as large.
        replicas: Another number of replicas on the same ranks.
        recompute: Stages that recompute their activations.
        link_factor: How many times as fast the links are: 2.0 halves every transfer.
        slow_ranks: Pipeline rank to how many times as long its compute takes: ``{1: 1.5}``.
    """

    cuts: tuple[int, ...] | None = None
    schedule: str | None = None
    micro_batches: int | None = None
    replicas: int | None = None
    recompute: tuple[int, ...] | None = None
    link_factor: float = 1.0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.schedule is not None:
            check_trains(self.schedule)
        if not self.link_factor > 0:
            raise InputError(f"link_factor={self.link_factor} is no factor; use more than 0, e.g. 2 for links twice as fast")
        for rank, factor in self.slow_ranks.items():
            if not factor > 0:
                raise InputError(f"slow_ranks[{rank}]={factor} is no factor; use more than 0, e.g. 1.5 for half as long again")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What would be.

    Args:
        plan: The changed plan.
        step: Its predicted step; its gain is against the run's own plan on the run's own machines.
        measured_step_s: Median step time of the run.
        replay_error_ratio: Replayed over measured step time of the run, less 1.
        assumptions: What the answer takes for granted, one sentence each.
    """

    plan: Plan
    step: PredictedStep
    measured_step_s: float
    replay_error_ratio: float
    assumptions: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        step = self.step
        return {
            "version": 1,
            "plan": self.plan.to_dict(),
            "step_time_s": step.step_time_s,
            "low_s": step.low_s,
            "high_s": step.high_s,
            "measured_step_time_s": self.measured_step_s,
            "gain_ratio": step.gain_ratio,
            "gain_low_ratio": step.gain_low_ratio,
            "gain_high_ratio": step.gain_high_ratio,
            "bubble_ratio": step.bubble_ratio,
            "rank_compute_s": list(step.rank_compute_s),
            "memory_bytes": list(step.memory_bytes),
            "replay_error_ratio": self.replay_error_ratio,
            "assumptions": list(self.assumptions),
        }


def what_if(measured: MeasuredStep, change: WhatIf) -> Answer:
    """Return the run's step under ``change``.

    Raises:
        PlanError: If the changed plan does not fit the model or the ranks, layer costs are missing, or the replay of the run misses its
            measured step by too much.
    """
    if measured.layers.missing:
        raise PlanError("; ".join(measured.layers.missing))
    predictor = _Changed(measured, change)
    if predictor.doubt:
        raise PlanError(predictor.doubt)
    plan = changed_plan(measured, change)
    for rank in change.slow_ranks:
        if not 0 <= rank < predictor.schedule(plan).ranks:
            ranks = predictor.schedule(plan).ranks
            raise PlanError(f"slow rank {rank} is out of range; the plan has pipeline ranks 0 to {ranks - 1}")
    step = predictor.predict(plan)
    return Answer(
        plan=plan,
        step=step,
        measured_step_s=measured.step_time.median,
        replay_error_ratio=predictor.replay_error_ratio,
        assumptions=tuple(_assumptions(measured, plan, change, step)),
    )


def changed_plan(measured: MeasuredStep, change: WhatIf) -> Plan:
    """Return the plan that ``change`` makes of the run's own.

    Raises:
        PlanError: If it does not fit the run's layers or ranks.
    """
    own, layers = measured.plan, len(measured.layers.layers)
    asked = {"schedule": change.schedule, "micro_batches": change.micro_batches, "replicas": change.replicas}
    plan = own.evolve(**{name: value for name, value in asked.items() if value is not None})
    ranks = measured.ranks * own.replicas // plan.replicas
    cuts = change.cuts
    if cuts is None:
        needed = _stages(plan.schedule, ranks, plan.micro_batches, own.stages)
        cuts = own.cuts if needed == own.stages else minimax_cuts(measured.layers.compute_s, needed)
    plan = plan.evolve(cuts=cuts, recompute=change.recompute if change.recompute is not None else ())
    if change.recompute is None and cuts == own.cuts:
        plan = plan.evolve(recompute=own.recompute)
    plan.check(layers)
    if measured.batch_samples and measured.batch_samples % (measured.micro_batches_in_a_step(plan) * plan.replicas):
        accumulated = f" in each of {measured.passes} accumulated passes" if measured.passes > 1 else ""
        raise PlanError(
            f"{counted(plan.micro_batches, 'micro-batch')}{accumulated} on {counted(plan.replicas, 'replica')} do not divide the batch of "
            f"{measured.batch_samples} samples; use numbers that do"
        )
    return plan


def _stages(schedule: str, ranks: int, micro_batches: int, own: int) -> int:
    """Return the stages that a schedule can run on so many ranks: the run's own number if it fits, else the least."""
    try:
        return build_schedule(schedule, ranks=ranks, micro_batches=micro_batches, stages=own).stages
    except PlanError:
        return build_schedule(schedule, ranks=ranks, micro_batches=micro_batches).stages


class _Changed(Predictor):
    """Predicts with links and ranks that are not those of the run; the run's own plan is replayed with its own."""

    def __init__(self, measured: MeasuredStep, change: WhatIf) -> None:
        super().__init__(measured, resize=True)
        self._change = change
        _ = self.replay_s  # before anything is changed
        self.measured = _ChangedStep.of(measured, change)

    def _is_own(self, plan: Plan) -> bool:
        return super()._is_own(plan) and self._change.link_factor == 1.0 and not self._change.slow_ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class _ChangedStep(MeasuredStep):
    link_factor: float = 1.0
    slow_ranks: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, measured: MeasuredStep, change: WhatIf) -> "_ChangedStep":
        fields = {name: getattr(measured, name) for name in MeasuredStep.__dataclass_fields__}
        return cls(**fields, link_factor=change.link_factor, slow_ranks=dict(change.slow_ranks))

    def costs_under(self, plan: Plan, schedule: Schedule) -> Costs:
        costs = MeasuredStep.costs_under(self, plan, schedule)
        slower = {stage: self.slow_ranks.get(rank, 1.0) for stage, rank in enumerate(schedule.stage_to_rank)}
        return replace(
            costs,
            op_s={(stage, kind): seconds * slower[stage] for (stage, kind), seconds in costs.op_s.items()},
            transfer_s={border: seconds / self.link_factor for border, seconds in costs.transfer_s.items()},
        )


def _assumptions(measured: MeasuredStep, plan: Plan, change: WhatIf, step: PredictedStep) -> list[str]:
    said = []
    if measured.size_ratio(plan) != 1.0 and measured.fixed_shares is None:
        said.append(
            "layer times follow the size of a micro-batch, and up to half of them may not (nobody measured it: the interval says so); "
            "pptoolkit profile measures the fixed part"
        )
    if plan.replicas > measured.plan.replicas:
        how = "a ring over the measured links" if measured.bandwidth else "nothing, because the run measured no link"
        said.append(f"the all-reduce of the gradients between replicas takes {how}")
    if plan.recompute:
        said.append("recomputing runs the forward of the stage once more before its backward")
    split = any(kind in plan.schedule for kind in ("zb", "dual"))
    if split and measured.backward_input_share == 0.5 and not any(kind in measured.plan.schedule for kind in ("zb", "dual")):
        said.append("the backward is taken to be half for the input and half for the weights, because the run did not split it")
    if not step.memory_bytes:
        said.append("memory is not predicted, because the run does not tell what its layers hold")
    return said
