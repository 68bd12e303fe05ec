"""Why a run takes as long as it does: everything that comes from replaying its steps, put together once."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.causes import BubbleCauses, split_bubble
from pptoolkit.analysis.critical_path import CriticalPath, find_critical_path
from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.regime import RegimeChange, find_regime_changes
from pptoolkit.analysis.replay import Replay, build_replay
from pptoolkit.analysis.slowdown import Slowdown, measure_slowdown
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.verdict import MIN_STEPS, Verdict, judge
from pptoolkit.errors import ScheduleError
from pptoolkit.telemetry.run_info import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What was found; the parts that need a replay are None where the steps could not be replayed, and ``missing`` says why."""

    verdict: Verdict
    causes: BubbleCauses | None
    slowdown: Slowdown | None
    critical_path: CriticalPath | None
    changes: tuple[RegimeChange, ...]
    missing: tuple[str, ...]


def diagnose(
    steady: SteadySteps, info: RunInfo, *, layers: LayerCosts | None, compute: pd.DataFrame, checkpoints: pd.DataFrame | None = None
) -> Diagnosis:
    """Return the diagnosis of a run's usable steps; there must be at least one.

    After a change in the middle of the run only the steps since then are judged, where they are enough.

    Args:
        steady: The usable steps.
        info: The run.
        layers: Layer costs; None where there are none.
        checkpoints: CHECKPOINT events of the attempt, inside steps or between them.
        compute: Compute of every step of the attempt: columns rank, step, op, seconds; see :func:`compute_series`.
    """
    changes = find_regime_changes(compute)
    since = since_change(steady, changes)
    missing: list[str] = []
    replay: Replay | None = None
    try:
        replay = build_replay(since, blocking_links=info.blocking_links)
    except ScheduleError as error:
        missing.append(f"the steps cannot be replayed: {error}")
    ranks = max(info.stage_to_rank) + 1
    saved = checkpoints[checkpoints["step"].isin(since.windows.index)] if checkpoints is not None and len(checkpoints) else None
    return Diagnosis(
        verdict=judge(since, info, replay=replay, layers=layers, changes=changes, checkpoints=saved),
        causes=split_bubble(replay) if replay is not None else None,
        slowdown=measure_slowdown(replay, pipeline_ranks=ranks) if replay is not None else None,
        critical_path=find_critical_path(replay) if replay is not None else None,
        changes=changes,
        missing=tuple(missing),
    )


def compute_series(events: pd.DataFrame) -> pd.DataFrame:
    """Return the summed compute of each rank, step and op of a timeline: columns rank, step, op, seconds."""
    rows = events[events["op"].isin(COMPUTE_CODES)]
    seconds = (rows["end_ns"] - rows["start_ns"]) / 1e9
    sums = seconds.groupby([rows["rank"], rows["step"], rows["op"]]).sum()
    return sums.rename("seconds").reset_index()


def since_change(steady: SteadySteps, changes: Sequence[RegimeChange]) -> SteadySteps:
    """Return the usable steps since the last change, or all of them where too few came after it."""
    inside = [change.step for change in changes if change.step in steady.windows.index]
    if not inside:
        return steady
    windows = steady.windows.loc[max(inside) :]
    if len(windows) < MIN_STEPS:
        return steady
    return SteadySteps(
        steady.events[steady.events["step"].isin(windows.index)].reset_index(drop=True), windows, steady.attempt, steady.skipped
    )
