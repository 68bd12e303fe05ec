"""The re-cuts inside a run: at which step the cuts changed, what was promised, and what came. Imports no Streamlit.

Each plan is measured over its own usable steps, never over those of another one, as the report does.
"""

from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from dashboard.charts.intervals import StepTime
from pptoolkit.analysis.segments import Segment, info_at, segments_of, spans_of
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import choose_steps
from pptoolkit.plan import Prediction
from pptoolkit.planner.compare import PredictionCheck, check_prediction
from pptoolkit.telemetry import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Recut:
    """One change of the cuts.

    Args:
        step: The first step under the new cuts.
        before: Cuts up to then.
        after: Cuts from then on.
        left: Step time under the cuts that were left; None without a usable step.
        promise: What the new plan promised; None if nothing.
        check: The promise beside what came; None without a promise or before the first usable step.
        moving_s: What the change took, from the decision to the built stages.
        moved_bytes: What went from rank to rank.
        sentence: Why, as it was said on the screen.
    """

    step: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    left: Interval | None
    promise: Prediction | None
    check: PredictionCheck | None
    moving_s: float
    moved_bytes: int
    sentence: str


def find_recuts(info: RunInfo, steps: pd.DataFrame) -> tuple[Recut, ...]:
    """Return the re-cuts of a run in order; none where its plan never changed.

    Args:
        info: run.json.
        steps: The windows of its steps: attempt, step, step_time_s, complete, first_use.
    """
    segments = segments_of(info)
    times = [_step_time(steps, first, end) for first, end in spans_of(info)]
    return tuple(
        _recut(info, old, new, left=before, achieved=after)
        for (old, new), (before, after) in zip(pairwise(segments), pairwise(times), strict=True)
    )


def _recut(info: RunInfo, old: Segment, new: Segment, *, left: Interval | None, achieved: Interval | None) -> Recut:
    then = info_at(info, new.first_step)
    return Recut(
        step=new.first_step,
        before=old.cuts,
        after=new.cuts,
        left=left,
        promise=then.read_plan().prediction,
        check=check_prediction(then, achieved) if achieved is not None else None,
        moving_s=new.moving_s,
        moved_bytes=new.moved_bytes,
        sentence=new.sentence,
    )


def _step_time(steps: pd.DataFrame, first: int, end: int) -> Interval | None:
    usable, _, _ = choose_steps(steps[(steps["step"] >= first) & (steps["step"] < end)])
    return interval_of(usable["step_time_s"].to_numpy(dtype="float64")) if len(usable) else None


def list_cuts(cuts: tuple[int, ...]) -> str:
    """Return cuts as a person reads them: ``"3, 6, 8"``."""
    return ", ".join(map(str, cuts)) or "none"


def cut_marks(info: RunInfo) -> tuple[tuple[int, str], ...]:
    """Return the first step and the cuts of each plan that held; nothing where there was only one."""
    segments = segments_of(info)
    return tuple((one.first_step, list_cuts(one.cuts)) for one in segments) if len(segments) > 1 else ()


def recut_rows(recuts: tuple[Recut, ...]) -> pd.DataFrame:
    """Return one row a re-cut, times of a step in ms; what is not known is None."""
    return pd.DataFrame([_row(one) for one in recuts])


def _row(one: Recut) -> dict[str, object]:
    promise = one.promise
    came = one.check.achieved if one.check is not None else None
    return {
        "step": one.step,
        "before": list_cuts(one.before),
        "after": list_cuts(one.after),
        "left_ms": 1e3 * one.left.median if one.left is not None else None,
        "predicted_ms": 1e3 * promise.step_time_s if promise is not None else None,
        "predicted_low_ms": 1e3 * promise.low_s if promise is not None else None,
        "predicted_high_ms": 1e3 * promise.high_s if promise is not None else None,
        "achieved_ms": 1e3 * came.median if came is not None else None,
        "error": 100 * one.check.error_ratio if one.check is not None else None,
        "within": None if one.check is None else "yes" if one.check.within else "no",
        "moving_s": one.moving_s,
        "moved_mib": one.moved_bytes / (1 << 20),
    }


def recut_times(recuts: tuple[Recut, ...]) -> list[StepTime]:
    """Return for each re-cut the step time before it, what was promised with its interval, and what came."""
    times = []
    for one in recuts:
        where = f"step {one.step}"
        if one.left is not None:
            times.append(_time(f"{where}: before, cuts {list_cuts(one.before)}", "others", one.left))
        if (promise := one.promise) is not None:
            label = f"{where}: promised, cuts {list_cuts(one.after)}"
            times.append(StepTime(label=label, kind="predicted", seconds=promise.step_time_s, low_s=promise.low_s, high_s=promise.high_s))
        if one.check is not None:
            times.append(_time(f"{where}: achieved", "measured", one.check.achieved))
    return times


def _time(label: str, kind: str, found: Interval) -> StepTime:
    return StepTime(label=label, kind=kind, seconds=found.median, low_s=found.low, high_s=found.high)
