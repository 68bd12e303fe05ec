"""A run in a few numbers, cheap enough for every refresh and for a whole list of runs.

The numbers equal the report's: the same usable steps, the same medians. What the report adds (stages, links, verdict) is left out.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.steps import STEADY_STEPS
from pptoolkit.telemetry.events import COMPUTE_OPS

_COMPUTE = pa.array([int(op) for op in COMPUTE_OPS], pa.uint8())


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What is known so far; None where nothing is yet.

    Args:
        steps_done: Steps that every rank has finished.
        step_time_s: Median over the usable steps.
        bubble_ratio: 1 - compute of all ranks / (ranks * step time); median over the usable steps.
        samples_per_s: Samples of all replicas per second.
    """

    steps_done: int
    loss: float | None
    step_time_s: float | None
    bubble_ratio: float | None
    samples_per_s: float | None


def usable_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the steps that statistics may use: complete, past the first use, the newest of the latest attempt.

    Args:
        steps: As from :func:`pptoolkit.analysis.steps.step_windows`, in order of time.
    """
    usable = steps[steps["complete"] & ~steps["first_use"]]
    newest: pd.DataFrame = usable[usable["attempt"] == usable["attempt"].max()].tail(STEADY_STEPS)
    return newest


def bubble_ratio(events: pa.Table, usable: pd.DataFrame, *, ranks: int) -> float | None:
    """Return the median bubble ratio over the usable steps; None without any."""
    if usable.empty:
        return None
    first, last, attempt = int(usable["step"].min()), int(usable["step"].max()), int(usable["attempt"].iloc[0])
    wanted = pc.and_(
        pc.is_in(events["op"], _COMPUTE), pc.and_(pc.greater_equal(events["step"], first), pc.less_equal(events["step"], last))
    )
    chosen = events.select(["step", "attempt", "start_ns", "end_ns"]).filter(pc.and_(wanted, pc.equal(events["attempt"], attempt)))
    place = chosen["step"].to_numpy() - first
    lengths = pc.subtract(chosen["end_ns"], chosen["start_ns"]).to_numpy()
    compute_s = np.bincount(place, weights=lengths, minlength=last - first + 1)[usable["step"].to_numpy() - first] / 1e9
    return float(np.median(1.0 - compute_s / (ranks * usable["step_time_s"].to_numpy())))


def build_brief(events: pa.Table, steps: pd.DataFrame, scalars: pd.DataFrame, losses: pd.DataFrame, *, ranks: int) -> Brief:
    """Return the brief of what was read so far."""
    usable = usable_steps(steps)
    step_time_s = float(usable["step_time_s"].median()) if len(usable) else None
    counted = scalars.loc[scalars["step"].isin(usable["step"]) & (scalars["samples"] > 0)].groupby("step")["samples"].sum()
    return Brief(
        steps_done=int(steps.loc[steps["complete"], "step"].nunique()),
        loss=float(losses["loss"].iloc[-1]) if len(losses) else None,
        step_time_s=step_time_s,
        bubble_ratio=bubble_ratio(events, usable, ranks=ranks),
        samples_per_s=float(counted.median()) / step_time_s if step_time_s and len(counted) else None,
    )
