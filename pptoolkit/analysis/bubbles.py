"""Bubbles: the gaps inside a step in which a rank does not compute, when they come and what the rank does instead."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.grouping import groups_of, seconds_by_step
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.events import COMPUTE_OPS, Op

COMPUTE_CODES = tuple(int(op) for op in COMPUTE_OPS)
BACKWARD_CODES = (int(Op.BACKWARD), int(Op.BACKWARD_INPUT), int(Op.BACKWARD_WEIGHT))
# What a rank can be seen to do in a gap; the rest of the gap is host time (schedule and Python).
ACTIVITIES: Mapping[str, tuple[int, ...]] = {
    "recv_wait": (int(Op.RECV),),
    "send_wait": (int(Op.SEND), int(Op.SEND_WAIT)),
    "collective": (int(Op.REDUCE),),
    "optimizer": (int(Op.OPTIMIZER),),
    "data": (int(Op.DATA),),
    "checkpoint": (int(Op.CHECKPOINT),),
}
_COLUMNS = ["rank", "step", "start_ns", "end_ns", "duration_s", "phase", "doing", *(f"{name}_s" for name in ACTIVITIES), "host_s"]

Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleSummary:
    """Measured bubble ratios beside the schedule's own.

    Args:
        ratio: Of the pipeline: 1 - compute of all ranks / (ranks * step time), per step; median with interval.
        per_rank: The same of each rank alone.
        schedule_ratio: What the schedule leaves idle with equal stages and free links; None where it is not known.
    """

    ratio: Interval
    per_rank: dict[int, Interval]
    schedule_ratio: float | None

    def to_dict(self) -> dict[str, object]:
        return {
            "ratio": self.ratio.to_dict(),
            "per_rank": {str(rank): interval.to_dict() for rank, interval in self.per_rank.items()},
            "schedule_ratio": self.schedule_ratio,
        }


def find_bubbles(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return every gap between compute ops inside the STEP windows of a timeline, one row a gap.

    Phases: a gap that begins after the rank's last forward of the step is cool-down, one that ends before its first backward is
    warm-up, the others are steady. ``doing`` is what fills most of the gap; the ``*_s`` columns say how long the rank did what,
    and sum to ``duration_s``.

    Returns:
        Columns rank, step, start_ns, end_ns, duration_s, phase, doing, recv_wait_s, send_wait_s, collective_s, optimizer_s, data_s,
        checkpoint_s, host_s; ordered by rank and start.
    """
    parts = [_rank_gaps(rank, events) for (rank,), events in groups_of(timeline, "rank")]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=_COLUMNS)


def compute_per_step(steady: SteadySteps) -> pd.DataFrame:
    """Return the seconds each rank computes in each step: rows are steps, columns are ranks."""
    events = steady.events
    compute = events[events["op"].isin(COMPUTE_CODES)]
    return seconds_by_step(compute, "rank", steps=steady.windows.index)


def summarise_bubbles(steady: SteadySteps, *, schedule_ratio: float | None) -> BubbleSummary | None:
    """Return the bubble ratios of the usable steps, or None if there are none with compute in them."""
    compute = compute_per_step(steady)
    if compute.empty:
        return None
    idle = 1.0 - compute.to_numpy() / steady.step_times_s[:, None]
    per_rank = {int(rank): interval_of(idle[:, column]) for column, rank in enumerate(compute.columns)}
    return BubbleSummary(ratio=interval_of(idle.mean(axis=1)), per_rank=per_rank, schedule_ratio=schedule_ratio)


def covered_ns(starts: Times, ends: Times, at: Times) -> npt.NDArray[np.float64]:
    """Return how much of the time before each moment in ``at`` the intervals cover; the intervals are sorted by start.

    Intervals that overlap count once. The difference of two results is the covered time between two moments.
    """
    if not len(starts):
        return np.zeros(len(at))
    reached = np.maximum.accumulate(ends)
    before = np.concatenate(([np.iinfo(np.int64).min], reached[:-1]))
    lows = np.maximum(starts, before)
    highs = np.maximum(reached, lows)
    origin = lows[0]  # small numbers: nanoseconds since boot do not fit a float exactly
    sums = np.concatenate(([0], np.cumsum(highs - lows)))
    edges = np.stack((lows - origin, highs - origin), axis=1).ravel().astype(np.float64)
    totals = np.stack((sums[:-1], sums[1:]), axis=1).ravel().astype(np.float64)
    return np.asarray(np.interp((at - origin).astype(np.float64), edges, totals), dtype=np.float64)


def _rank_gaps(rank: int, events: pd.DataFrame) -> pd.DataFrame:
    op = events["op"].to_numpy()
    start, end, step = (events[name].to_numpy(dtype=np.int64) for name in ("start_ns", "end_ns", "step"))
    whole, compute = op == int(Op.STEP), np.isin(op, COMPUTE_CODES)
    steps = np.sort(step[whole])
    compute &= np.isin(step, steps)
    # Between the edges of a step and of its ops the k-th gap begins at the k-th of these and ends at the k-th of those.
    begins = np.sort(np.concatenate((start[whole], end[compute])))
    ends = np.sort(np.concatenate((start[compute], end[whole])))
    gaps = ends > begins
    begins, ends = begins[gaps], ends[gaps]
    of_step = _step_of(begins, start[whole], step[whole])
    columns: dict[str, object] = {
        "rank": np.full(len(begins), rank),
        "step": of_step,
        "start_ns": begins,
        "end_ns": ends,
        "duration_s": (ends - begins) / 1e9,
        "phase": _phases(begins, ends, of_step, op, start, end, step),
    }
    seconds = {}
    for name, codes in ACTIVITIES.items():
        chosen = np.isin(op, codes)
        order = np.argsort(start[chosen], kind="stable")
        edges = covered_ns(start[chosen][order], end[chosen][order], np.concatenate((begins, ends)))
        seconds[f"{name}_s"] = (edges[len(begins) :] - edges[: len(begins)]) / 1e9
    duration = (ends - begins) / 1e9
    seconds["host_s"] = np.clip(duration - sum(seconds.values()), 0.0, None)
    names = np.array([name.removesuffix("_s") for name in seconds])
    columns["doing"] = names[np.stack(list(seconds.values())).argmax(axis=0)] if len(begins) else names[:0]
    return pd.DataFrame({**columns, **seconds})[_COLUMNS]


def _step_of(moments: Times, step_starts: Times, steps: Times) -> Times:
    order = np.argsort(step_starts)
    place = np.clip(np.searchsorted(step_starts[order], moments, side="right") - 1, 0, None)
    return steps[order][place] if len(steps) else moments[:0]


def _phases(
    begins: Times, ends: Times, of_step: Times, op: npt.NDArray[np.uint8], start: Times, end: Times, step: Times
) -> npt.NDArray[np.str_]:
    forward, backward = op == int(Op.FORWARD), np.isin(op, BACKWARD_CODES)
    last_forward = pd.Series(end[forward]).groupby(step[forward]).max()
    first_backward = pd.Series(start[backward]).groupby(step[backward]).min()
    none = np.iinfo(np.int64).max
    after = begins >= last_forward.reindex(of_step, fill_value=none).to_numpy()
    before = ends <= first_backward.reindex(of_step, fill_value=none).to_numpy()
    return np.where(after, "cool-down", np.where(before, "warm-up", "steady"))
