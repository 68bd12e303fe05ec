"""Which steps of a run count: their windows, their times, and the ones that are complete and past the first use."""

from dataclasses import dataclass

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
    done = timeline.loc[timeline["op"] == int(Op.STEP), ["attempt", "step", "rank", "start_ns", "end_ns", "flags"]]
    done = done.assign(duration_ns=done["end_ns"] - done["start_ns"], first_use=(done["flags"] & int(Flag.FIRST_USE)) > 0)
    grouped = done.groupby(["attempt", "step"], sort=True)
    windows = grouped.agg(
        start_ns=("start_ns", "min"),
        end_ns=("end_ns", "max"),
        longest_ns=("duration_ns", "max"),
        ranks=("rank", "nunique"),
        first_use=("first_use", "any"),
    ).reset_index()
    windows["step_time_s"] = windows.pop("longest_ns") / 1e9
    windows["complete"] = windows["ranks"] >= ranks
    return windows


def steady_steps(timeline: pd.DataFrame, *, ranks: int, last: int = STEADY_STEPS) -> SteadySteps:
    """Return the usable steps of the latest attempt that has any: complete on all ranks, and not the first use of a shape."""
    windows = step_windows(timeline, ranks=ranks)
    usable = windows[windows["complete"] & ~windows["first_use"]]
    if usable.empty:
        attempt = int(windows["attempt"].max()) if len(windows) else -1
        mine = windows[windows["attempt"] == attempt]
        return SteadySteps(timeline.iloc[0:0], _windows_by_step(usable), -1, _reasons(mine))
    attempt = int(usable["attempt"].max())
    skipped = _reasons(windows[windows["attempt"] == attempt])
    usable = usable[usable["attempt"] == attempt].tail(last)
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
