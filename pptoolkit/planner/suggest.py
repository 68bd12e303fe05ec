"""Suggest better plans: exact minimax on the measured layer costs, its neighbours or a joint search tried by simulation.

Silence within the noise: a suggestion is made only if even the low end of its predicted gain is a gain.
"""

import math
from collections.abc import Mapping

from pptoolkit.errors import PPToolkitError, counted
from pptoolkit.plan import Origin, Plan
from pptoolkit.planner.baselines import baseline_cuts
from pptoolkit.planner.binding import what_binds
from pptoolkit.planner.explain import describe_change, describe_moves
from pptoolkit.planner.neighbours import neighbours
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.planner.predict import PredictedStep, Predictor
from pptoolkit.planner.search import SearchSpace, search_plans
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggestion import NoChange, StageChange, Suggestion, Suggestions
from pptoolkit.telemetry.run_info import RunInfo

MIN_GAIN = 0.02
MIN_STEPS = 5
MOST_SUGGESTIONS = 3
_SEARCH_ACTIONS = 3_000_000  # simulated actions a search may spend: a few seconds

__all__ = ["NoChange", "StageChange", "Suggestion", "Suggestions", "search_cuts", "suggest"]


def suggest(measured: MeasuredStep, info: RunInfo, *, space: SearchSpace | None = None) -> Suggestions:
    """Return what would make the run faster, or why nothing is suggested.

    A suggestion is made only if even the low end of its predicted gain is a gain, and the gain itself is more than :data:`MIN_GAIN`; or
    if the run's own plan does not fit a memory limit, which leaves no choice.

    Args:
        measured: The run's step.
        info: The run.
        space: What may change beside the cuts; None: only the cuts.
    """
    step_s = measured.step_time.median
    obstacle = _obstacle(measured, space)
    if obstacle is not None:
        return Suggestions(run_id=info.run_id, no_change=obstacle, step_time_s=step_s)
    try:
        predictor = Predictor(measured, resize=space is not None)
        doubt = predictor.doubt
    except PPToolkitError as error:
        return Suggestions(run_id=info.run_id, no_change=NoChange(reason=str(error), conclusive=False), step_time_s=step_s)
    if doubt:
        no_change = NoChange(reason=doubt, conclusive=False)
        return Suggestions(run_id=info.run_id, no_change=no_change, step_time_s=step_s, replay_error_ratio=predictor.replay_error_ratio)
    baselines = _baselines(predictor)
    if space is None:
        ranked, must = [(step, what_binds(predictor, step)) for step in search_cuts(predictor)], False
    else:
        found = search_plans(predictor, space)
        # Before the first run there is no plan to keep: the best one is given, even if it is the one that anybody would begin with.
        must = measured.is_profile or _must_change(predictor, space)
        ranked = [(item.step, item.binding) for item in found.items]
        if not ranked:
            reason = _infeasible(space.memory_limit_bytes or 0, found.smallest_memory_bytes)
            return _nothing(info, predictor, NoChange(reason=reason, conclusive=True), baselines)
    better = [(step, binding) for step, binding in ranked if must or _is_worth_it(step, measured)][:MOST_SUGGESTIONS]
    if not better:
        return _nothing(info, predictor, _no_change(ranked[0][0], measured, info), baselines)
    return Suggestions(
        run_id=info.run_id,
        items=tuple(_suggestion(step, binding, measured, info, baselines) for step, binding in better),
        step_time_s=step_s,
        replay_error_ratio=predictor.replay_error_ratio,
        baselines=baselines,
        is_profile=predictor.measured.is_profile,
    )


def _nothing(info: RunInfo, predictor: Predictor, no_change: NoChange, baselines: Mapping[str, float]) -> Suggestions:
    return Suggestions(
        run_id=info.run_id,
        no_change=no_change,
        step_time_s=predictor.measured.step_time.median,
        replay_error_ratio=predictor.replay_error_ratio,
        baselines=baselines,
        is_profile=predictor.measured.is_profile,
    )


def _must_change(predictor: Predictor, space: SearchSpace) -> bool:
    """Whether the run's own plan needs more memory than it may."""
    limit = space.memory_limit_bytes
    return limit is not None and max(predictor.memory(predictor.measured.plan), default=0) > limit


def _infeasible(limit: int, smallest: int | None) -> str:
    need = f"; the smallest limit that any of them fits is {smallest / 2**20:,.0f} MiB a rank ({smallest} bytes)" if smallest else ""
    return f"no plan fits {limit / 2**20:,.0f} MiB a rank{need}"


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


def _obstacle(measured: MeasuredStep, space: SearchSpace | None) -> NoChange | None:
    """Return why this run cannot be planned from, if it cannot."""
    if measured.plan.stages == 1 and space is None:
        return NoChange(reason="the model is one stage, so there is no cut to move", conclusive=True)
    if not measured.is_profile and measured.step_time.samples < MIN_STEPS:
        few = measured.step_time.samples
        are = f"{counted(few, 'usable step')} {'is' if few == 1 else 'are'}"
        reason = f"{are} too few to plan from; train at least {MIN_STEPS} steps after the first"
        return NoChange(reason=reason, conclusive=False)
    if measured.layers.missing:
        return NoChange(reason="; ".join(measured.layers.missing), conclusive=False)
    if space is not None and space.memory_limit_bytes is not None and measured.memory_under(measured.plan) is None:
        reason = "the run does not tell what its layers hold, so no memory limit can be kept; train with this release, or profile the model"
        return NoChange(reason=reason, conclusive=False)
    return None


def _is_worth_it(found: PredictedStep, measured: MeasuredStep) -> bool:
    return not _is_own(found.plan, measured) and found.gain_ratio > MIN_GAIN and found.gain_low_ratio > 0


def _is_own(plan: Plan, measured: MeasuredStep) -> bool:
    return plan.evolve(fingerprint="", origin=None) == measured.plan.evolve(fingerprint="", origin=None)


def _no_change(best: PredictedStep, measured: MeasuredStep, info: RunInfo) -> NoChange:
    if _is_own(best.plan, measured) and info.is_foreign and len(info.layers) == info.stages:
        reason = (
            f"the trace names no layers, only its {counted(info.stages, 'stage')}, so no other cut can be found; for layer costs train the "
            "model with pptoolkit (pptoolkit train), or measure its layers with: pptoolkit profile"
        )
        return NoChange(reason=reason, conclusive=False)
    return NoChange(reason=_why_not(best, measured), conclusive=True)


def _why_not(best: PredictedStep, measured: MeasuredStep) -> str:
    if _is_own(best.plan, measured):
        return f"cuts={list(best.plan.cuts)} are already the best that the measured layer costs allow"
    same = best.plan.evolve(cuts=measured.plan.cuts) == measured.plan.evolve(prediction=None)
    what = f"cuts, {list(best.plan.cuts)}," if same else f"plan, {describe_change(measured.plan, best.plan)},"
    promise = f"the best other {what} promise{'' if same else 's'} {best.gain_ratio:.1%}"
    if best.gain_low_ratio <= 0:
        return f"{promise}, which is within the noise ({best.gain_low_ratio:.1%} to {best.gain_high_ratio:.1%})"
    return f"{promise}, and below {MIN_GAIN:.0%} a change is not worth it"


def _baselines(predictor: Predictor) -> dict[str, float]:
    plan, layers = predictor.measured.plan, predictor.measured.layers
    sizes = [float(layer.parameter_bytes) for layer in layers.layers]
    ways = baseline_cuts(layers.compute_s, sizes, plan.stages)
    return {name: predictor.predict(plan.evolve(cuts=chosen)).step_time_s for name, chosen in ways.items()}


def _suggestion(found: PredictedStep, binding: str, measured: MeasuredStep, info: RunInfo, baselines: Mapping[str, float]) -> Suggestion:
    layer_s = measured.layers.compute_s
    old, new = (plan.stage_layers(len(layer_s)) for plan in (measured.plan, found.plan))
    plan = found.plan.evolve(
        fingerprint=info.fingerprint,
        origin=Origin(
            run=info.run_id,
            samples=measured.layers.samples,
            note="profile" if measured.is_profile else f"{measured.step_time.samples} steps",
        ),
        prediction=found.as_prediction(baseline_step_time_s=measured.step_time.median),
    )
    changes = tuple(
        StageChange(
            stage=stage,
            layers_before=(old[stage].start, old[stage].stop) if stage < len(old) else None,
            layers_after=(layers.start, layers.stop),
            compute_before_s=math.fsum(layer_s[i] for i in old[stage]) if stage < len(old) else None,
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
        sentence=_sentence(found.plan, measured, info),
        memory_bytes=found.memory_bytes,
        binding=binding,
    )


def _sentence(plan: Plan, measured: MeasuredStep, info: RunInfo) -> str:
    """Say what changes: first what is not the cuts, then which layers move."""
    layer_s, own = measured.layers.compute_s, measured.plan
    if _is_own(plan, measured):
        return "equal layer counts are as good as any cut" if measured.is_profile else "keep the plan"
    change = describe_change(own, plan)
    if plan.stages != own.stages or plan.cuts == own.cuts:
        return change
    moves = describe_moves(info.layers, layer_s, own.stage_layers(len(layer_s)), plan.stage_layers(len(layer_s)))
    return f"{change}, and {moves}" if change else moves
