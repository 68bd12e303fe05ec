"""Suggest better cuts: exact minimax on the measured layer costs, its neighbours tried by simulation, and silence within the noise."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pptoolkit.errors import PlanError, PPToolkitError, RunError
from pptoolkit.plan import Origin, Plan
from pptoolkit.planner.baselines import baseline_cuts
from pptoolkit.planner.explain import describe_moves
from pptoolkit.planner.neighbours import neighbours
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.planner.predict import PredictedStep, Predictor
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.telemetry.json_files import replace_json
from pptoolkit.telemetry.run_info import RunInfo

SUGGESTIONS_VERSION = 1
MIN_GAIN = 0.02
MIN_STEPS = 5
MOST_SUGGESTIONS = 3
_SEARCH_ACTIONS = 3_000_000  # simulated actions a search may spend: a few seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """One stage before and after; layers as (first, after the last), compute per micro-batch in seconds. None: no such stage."""

    stage: int
    layers_before: tuple[int, int] | None
    layers_after: tuple[int, int]
    compute_before_s: float | None
    compute_after_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "layers_before": list(self.layers_before) if self.layers_before else None,
            "layers_after": list(self.layers_after),
            "compute_before_s": self.compute_before_s,
            "compute_after_s": self.compute_after_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A plan that is expected to be faster.

    Args:
        plan: Ready to save: with fingerprint, origin and prediction.
        step_time_s: Predicted step time, with ``low_s`` and ``high_s`` around it.
        gain_ratio: 1 - predicted / measured step time, with ``gain_low_ratio`` and ``gain_high_ratio`` around it.
        bubble_ratio: Predicted.
        stages: Before and after, stage by stage.
        baselines: What other ways of cutting would give: name to predicted step time in seconds.
        sentence: What changes, for a person.
    """

    plan: Plan
    step_time_s: float
    low_s: float
    high_s: float
    gain_ratio: float
    gain_low_ratio: float
    gain_high_ratio: float
    bubble_ratio: float
    stages: tuple[StageChange, ...]
    baselines: Mapping[str, float]
    sentence: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_dict(),
            "step_time_s": self.step_time_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "gain_ratio": self.gain_ratio,
            "gain_low_ratio": self.gain_low_ratio,
            "gain_high_ratio": self.gain_high_ratio,
            "bubble_ratio": self.bubble_ratio,
            "stages": [stage.to_dict() for stage in self.stages],
            "baselines": dict(self.baselines),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoChange:
    """The advice to leave the plan as it is.

    Args:
        reason: Why, and what to do if the reason is a lack of data.
        conclusive: True: the data say that nothing better is in sight. False: they do not suffice to say.
    """

    reason: str
    conclusive: bool

    def to_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "conclusive": self.conclusive}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """The ranked suggestions of a run, best first; or none, and why. ``len()``, iteration and ``[0]`` go over the suggestions.

    Args:
        run_id: The run they come from.
        items: Best first.
        no_change: Set if and only if there are no items.
        step_time_s: Measured step time of the run; None without usable steps.
        replay_error_ratio: See :class:`~pptoolkit.planner.predict.Predictor`; None where no replay was possible.
        baselines: Predicted step times of other ways of cutting.
    """

    run_id: str
    items: tuple[Suggestion, ...] = ()
    no_change: NoChange | None = None
    step_time_s: float | None = None
    replay_error_ratio: float | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Suggestion:
        if not self.items:
            reason = self.no_change.reason if self.no_change else "nothing was suggested"
            raise PlanError(f"there is no suggestion to take for run {self.run_id}: {reason}")
        return self.items[index]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form that suggestions.json holds."""
        return {
            "version": SUGGESTIONS_VERSION,
            "run_id": self.run_id,
            "step_time_s": self.step_time_s,
            "replay_error_ratio": self.replay_error_ratio,
            "suggestions": [item.to_dict() for item in self.items],
            "no_change": self.no_change.to_dict() if self.no_change else None,
            "baselines": dict(self.baselines),
        }

    def save(self, path: Path) -> None:
        """Write the suggestions as JSON, replacing ``path`` in one step.

        Raises:
            RunError: If the file cannot be written.
        """
        try:
            replace_json(path, self.to_dict())
        except OSError as error:
            raise RunError(f"cannot write the suggestions to {path}: {error.strerror or error}; make the run directory writable") from error


def suggest(measured: MeasuredStep, info: RunInfo) -> Suggestions:
    """Return what would make the run faster, or why nothing is suggested.

    A suggestion is made only if even the low end of its predicted gain is a gain, and the gain itself is more than :data:`MIN_GAIN`.
    """
    step_s = measured.step_time.median
    obstacle = _obstacle(measured)
    if obstacle is not None:
        return Suggestions(run_id=info.run_id, no_change=obstacle, step_time_s=step_s)
    try:
        predictor = Predictor(measured)
    except PPToolkitError as error:
        return Suggestions(run_id=info.run_id, no_change=NoChange(reason=str(error), conclusive=False), step_time_s=step_s)
    if predictor.doubt:
        no_change = NoChange(reason=predictor.doubt, conclusive=False)
        return Suggestions(run_id=info.run_id, no_change=no_change, step_time_s=step_s, replay_error_ratio=predictor.replay_error_ratio)
    baselines = _baselines(predictor)
    ranked = search_cuts(predictor)
    better = [found for found in ranked if _is_worth_it(found, measured)][:MOST_SUGGESTIONS]
    return Suggestions(
        run_id=info.run_id,
        items=tuple(_suggestion(found, measured, info, baselines) for found in better),
        no_change=None if better else NoChange(reason=_why_not(ranked[0], measured), conclusive=True),
        step_time_s=step_s,
        replay_error_ratio=predictor.replay_error_ratio,
        baselines=baselines,
    )


def search_cuts(predictor: Predictor) -> list[PredictedStep]:
    """Return predicted plans, best first: the minimax cut, the run's own cut, and what single shifted cuts improve on the best of them.

    Shifts go on from the best plan as long as one of them gains. A plan whose busiest rank alone takes longer than the best simulated
    step is not simulated; that loses nothing.
    """
    plan, layers = predictor.measured.plan, predictor.measured.layers.compute_s
    first = plan.evolve(cuts=minimax_cuts(layers, plan.stages))
    tried = {cuts: predictor.predict(plan.evolve(cuts=cuts)) for cuts in dict.fromkeys((first.cuts, plan.cuts))}
    budget = max(1, _SEARCH_ACTIONS // predictor.actions)
    best = min(tried.values(), key=_rank)
    while True:
        for cuts in neighbours(best.plan.cuts, len(layers)):
            candidate = plan.evolve(cuts=cuts)
            if (
                cuts in tried
                or len(tried) >= budget
                or predictor.least_step_s(candidate) >= best.step_time_s * (1 + predictor.replay_error_ratio)
            ):
                continue
            tried[cuts] = predictor.predict(candidate)
        found = min(tried.values(), key=_rank)
        if found is best:
            return sorted(tried.values(), key=_rank)
        best = found


def _rank(found: PredictedStep) -> tuple[float, tuple[int, ...]]:
    return found.step_time_s, found.plan.cuts


def _obstacle(measured: MeasuredStep) -> NoChange | None:
    """Return why this run cannot be planned from, if it cannot."""
    if measured.plan.stages == 1:
        return NoChange(reason="the model is one stage, so there is no cut to move", conclusive=True)
    if measured.step_time.samples < MIN_STEPS:
        reason = f"{measured.step_time.samples} usable steps are too few to plan from; train at least {MIN_STEPS} steps after the first"
        return NoChange(reason=reason, conclusive=False)
    if measured.layers.missing:
        return NoChange(reason="; ".join(measured.layers.missing), conclusive=False)
    return None


def _is_worth_it(found: PredictedStep, measured: MeasuredStep) -> bool:
    return found.plan.cuts != measured.plan.cuts and found.gain_ratio > MIN_GAIN and found.gain_low_ratio > 0


def _why_not(best: PredictedStep, measured: MeasuredStep) -> str:
    if best.plan.cuts == measured.plan.cuts:
        return f"cuts={list(best.plan.cuts)} are already the best that the measured layer costs allow"
    promise = f"the best other cuts, {list(best.plan.cuts)}, promise {best.gain_ratio:.1%}"
    if best.gain_low_ratio <= 0:
        return f"{promise}, which is within the noise ({best.gain_low_ratio:.1%} to {best.gain_high_ratio:.1%})"
    return f"{promise}, and below {MIN_GAIN:.0%} a change is not worth it"


def _baselines(predictor: Predictor) -> dict[str, float]:
    plan, layers = predictor.measured.plan, predictor.measured.layers
    sizes = [float(layer.parameter_bytes) for layer in layers.layers]
    ways = baseline_cuts(layers.compute_s, sizes, plan.stages)
    return {name: predictor.predict(plan.evolve(cuts=chosen)).step_time_s for name, chosen in ways.items()}


def _suggestion(found: PredictedStep, measured: MeasuredStep, info: RunInfo, baselines: Mapping[str, float]) -> Suggestion:
    layer_s = measured.layers.compute_s
    old, new = (plan.stage_layers(len(layer_s)) for plan in (measured.plan, found.plan))
    plan = found.plan.evolve(
        fingerprint=info.fingerprint,
        origin=Origin(run=info.run_id, samples=measured.layers.samples, note=f"{measured.step_time.samples} steps"),
        prediction=found.as_prediction(baseline_step_time_s=measured.step_time.median),
    )
    changes = tuple(
        StageChange(
            stage=stage,
            layers_before=(old[stage].start, old[stage].stop),
            layers_after=(layers.start, layers.stop),
            compute_before_s=math.fsum(layer_s[i] for i in old[stage]),
            compute_after_s=found.stage_compute_s[stage],
        )
        for stage, layers in enumerate(new)
    )
    return Suggestion(
        plan=plan,
        step_time_s=found.step_time_s,
        low_s=found.low_s,
        high_s=found.high_s,
        gain_ratio=found.gain_ratio,
        gain_low_ratio=found.gain_low_ratio,
        gain_high_ratio=found.gain_high_ratio,
        bubble_ratio=found.bubble_ratio,
        stages=changes,
        baselines=baselines,
        sentence=describe_moves(info.layers, layer_s, old, new),
    )
