"""Which steps of a run count: their windows, their times, and the ones that are complete and past the first use."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.telemetry.events import Flag, Op

STEADY_STEPS = 200  # the most recent usable steps: enough for a narrow interval, and a long run costs no more than a short one


@dataclass(frozen=True, slots=True)
class SteadySteps:
    """The usable steps of one attempt, and every event inside them.

    Args:
        events: The timeline restricted to the usable steps; a step number occurs once.
        windows: One row a step (index): start_ns, end_ns, step_time_s.
        attempt: The attempt that the steps belong to, -1 if there are none.
        skipped: Why other steps of the attempt do not count: reason to number of steps.
    """

    events: pd.DataFrame
    windows: pd.DataFrame
    attempt: int
    skipped: dict[str, int]

    @property
    def count(self) -> int:
        return len(self.windows)

    @property
    def step_times_s(self) -> npt.NDArray[np.float64]:
        return np.asarray(self.windows["step_time_s"], dtype=np.float64)

    @property
    def step_time(self) -> Interval | None:
        """The median step time with its interval; None without usable steps."""
        return interval_of(self.step_times_s) if self.count else None


def step_windows(timeline: pd.DataFrame, *, ranks: int) -> pd.DataFrame:
    """Return one row per (attempt, step) of a timeline.

    A step's time is the longest STEP event among its ranks: ranks that do not wait for each other between steps start theirs at
    different moments, so the span from the first start to the last end would count some time twice.

    Args:
        timeline: Aligned events, as built by :func:`pptoolkit.analysis.timeline.build_timeline`.
        ranks: How many ranks must have finished a step for it to be complete.

    Returns:
        Columns attempt, step, start_ns, end_ns, step_time_s, ranks, complete, first_use; ordered by attempt and step.
    """
    done = timeline.loc[timeline["op"] == int(Op.STEP)]
    attempt, step, rank, start, end = (done[name].to_numpy(dtype=np.int64) for name in ("attempt", "step", "rank", "start_ns", "end_ns"))
    order = np.lexsort((rank, step, attempt))
    attempt, step, rank, start, end = (values[order] for values in (attempt, step, rank, start, end))
    first_use = (done["flags"].to_numpy()[order] & int(Flag.FIRST_USE)) > 0
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (attempt[1:] != attempt[:-1]) | (step[1:] != step[:-1])
    other_rank = is_new.copy()
    other_rank[1:] |= rank[1:] != rank[:-1]
    at = np.flatnonzero(is_new)

    def reduced(pick: np.ufunc, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return pick.reduceat(values, at) if len(at) else values[:0]

    seen = reduced(np.add, other_rank.astype(np.int64))
    return pd.DataFrame(
        {
            "attempt": attempt[at],
            "step": step[at],
            "start_ns": reduced(np.minimum, start),
            "end_ns": reduced(np.maximum, end),
            "step_time_s": reduced(np.maximum, end - start) / 1e9,
            "ranks": seen,
            "complete": seen >= ranks,
            "first_use": reduced(np.logical_or, first_use),
        }
    )


def choose_steps(windows: pd.DataFrame, *, last: int = STEADY_STEPS) -> tuple[pd.DataFrame, int, dict[str, int]]:
    """Return the windows of the usable steps, their attempt (-1: there are none), and why other steps of that attempt do not count.

    Args:
        windows: As from :func:`step_windows`.
        last: Take no more than so many, the most recent ones.
    """
    usable = windows[windows["complete"] & ~windows["first_use"]]
    if usable.empty:
        attempt = int(windows["attempt"].max()) if len(windows) else -1
        return usable, -1, _reasons(windows[windows["attempt"] == attempt])
    attempt = int(usable["attempt"].max())
    skipped = _reasons(windows[windows["attempt"] == attempt])
    return usable[usable["attempt"] == attempt].tail(last), attempt, skipped


def steady_steps(timeline: pd.DataFrame, *, ranks: int, last: int = STEADY_STEPS) -> SteadySteps:
    """Return the usable steps of the latest attempt that has any: complete on all ranks, and not the first use of a shape."""
    return steady_of(timeline, *choose_steps(step_windows(timeline, ranks=ranks), last=last))


def steady_of(timeline: pd.DataFrame, usable: pd.DataFrame, attempt: int, skipped: dict[str, int]) -> SteadySteps:
    """Return the steps that :func:`choose_steps` chose, with their events."""
    if attempt < 0:
        return SteadySteps(timeline.iloc[0:0], _windows_by_step(usable), -1, skipped)
    inside = timeline[(timeline["attempt"] == attempt) & timeline["step"].isin(usable["step"])]
    return SteadySteps(_within_their_step(inside), _windows_by_step(usable), attempt, skipped)


def _within_their_step(events: pd.DataFrame) -> pd.DataFrame:
    """Keep what lies inside its rank's STEP event: an evaluation after step 10 still carries the number 10."""
    whole = events.loc[events["op"] == int(Op.STEP), ["rank", "step", "start_ns", "end_ns"]].drop_duplicates(["rank", "step"], keep="last")
    edges = whole.set_index(["rank", "step"]).reindex(pd.MultiIndex.from_frame(events[["rank", "step"]]))
    within = (events["start_ns"].to_numpy() >= edges["start_ns"].to_numpy()) & (events["end_ns"].to_numpy() <= edges["end_ns"].to_numpy())
    return events[within].reset_index(drop=True)


def _windows_by_step(windows: pd.DataFrame) -> pd.DataFrame:
    return windows.set_index("step")[["start_ns", "end_ns", "step_time_s"]]


def _reasons(windows: pd.DataFrame) -> dict[str, int]:
    incomplete = int((~windows["complete"]).sum())
    first_use = int((windows["complete"] & windows["first_use"]).sum())
    return {reason: n for reason, n in (("incomplete on some rank", incomplete), ("first use of a shape", first_use)) if n}
