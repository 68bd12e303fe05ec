"""Loss and step time over steps, for one run or several on one axis."""

from collections.abc import Mapping

import altair as alt
import numpy as np
import pandas as pd

from dashboard.charts.palette import RUN_COLORS

MOST_POINTS = 800
HEIGHT = 240
_DASHES = ([1, 0], [6, 5], [2, 3], [9, 3, 2, 3], [1, 6])  # no two of five that lie on each other hide one another


def thin_out(frame: pd.DataFrame, column: str, *, most: int = MOST_POINTS) -> pd.DataFrame:
    """Return at most ``most`` rows of step and ``column``: neighbouring steps are averaged. Rows without a value are dropped."""
    known = frame[["step", column]].dropna()
    known = known[np.isfinite(known[column].astype(float))]
    every = -(-len(known) // most)
    if every <= 1:
        return known.reset_index(drop=True)
    bucket = np.arange(len(known)) // every
    return known.groupby(bucket).agg({"step": "first", column: "mean"}).reset_index(drop=True)


def curve_chart(runs: Mapping[str, pd.DataFrame], column: str, *, title: str, factor: float = 1.0, zero: bool = False) -> alt.LayerChart:
    """Draw ``column`` times ``factor`` over the steps of each run.

    Args:
        runs: Frames with columns step and ``column``, by the name that the legend shows.
        column: What to draw.
        title: Title of the axis, with its unit.
        factor: From the frame's unit to the axis' unit.
        zero: Whether the axis begins at 0.
    """
    parts = [thin_out(frame, column).assign(run=name) for name, frame in runs.items()]
    data = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=["step", column, "run"])
    data = data.rename(columns={column: "value"}).assign(value=lambda d: d["value"].astype(float) * factor)
    several = len(runs) > 1
    legend = alt.Legend(title=None, orient="top", labelLimit=400, symbolType="stroke", symbolSize=400) if several else None
    color = alt.Color(
        "run:N", scale=alt.Scale(domain=list(runs), range=[RUN_COLORS[i % len(RUN_COLORS)] for i in range(len(runs))]), legend=legend
    )
    base = alt.Chart(data).encode(
        x=alt.X("step:Q", title="step", axis=alt.Axis(format="d", tickMinStep=1, grid=False), scale=alt.Scale(nice=False)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero)),
        tooltip=[
            alt.Tooltip("run:N", title="run"),
            alt.Tooltip("step:Q", title="step", format="d"),
            alt.Tooltip("value:Q", title=title, format=".5~g"),
        ],
    )
    # The second run is dashed, and so on: curves that lie on each other, as they should, stay visible.
    dash = alt.StrokeDash(
        "run:N", scale=alt.Scale(domain=list(runs), range=[_DASHES[i % len(_DASHES)] for i in range(len(runs))]), legend=legend
    )
    line = base.mark_line(strokeWidth=2).encode(color=color, strokeDash=dash)
    points = base.mark_circle(size=60, opacity=0)  # a generous target for the mouse
    return alt.LayerChart(layer=[line, points]).properties(height=HEIGHT)


def step_time_chart(runs: Mapping[str, pd.DataFrame]) -> alt.LayerChart:
    """Draw the step time of each run, in seconds where steps take that long, else in milliseconds."""
    times = [float(frame["step_time_s"].median()) for frame in runs.values() if len(frame)]
    factor, unit = (1.0, "s") if max(times, default=0.0) >= 1 else (1e3, "ms")
    return curve_chart(runs, "step_time_s", title=f"step time, {unit}", factor=factor)
