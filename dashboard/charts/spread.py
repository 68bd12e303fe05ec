"""How a stage's compute spreads over the steps, against its own median: one box a stage, and the steps far from it as points."""

import altair as alt
import numpy as np
import pandas as pd

from dashboard.charts.palette import stage_color
from pptoolkit.telemetry.events import COMPUTE_OPS

MOST_POINTS = 1500


def spread_rows(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return stage, step and ms: compute of each stage in each step of ``timeline``, the mean over the replicas."""
    compute = timeline[timeline["op"].isin([int(op) for op in COMPUTE_OPS])]
    if compute.empty:
        return pd.DataFrame(columns=["stage", "step", "ms"])
    replicas = max(int(compute["replica"].nunique()), 1)
    ms = (compute["end_ns"] - compute["start_ns"]) / 1e6 / replicas
    rows: pd.DataFrame = ms.groupby([compute["stage"], compute["step"]]).sum().rename("ms").reset_index()
    return rows.astype({"stage": np.int64, "step": np.int64})


def spread_chart(rows: pd.DataFrame) -> alt.LayerChart:
    """Draw :func:`spread_rows`: box from the first to the third quartile, whiskers to the 2nd and 98th percentile, points beyond."""
    quantiles = rows.groupby("stage")["ms"].quantile(np.array([0.02, 0.25, 0.5, 0.75, 0.98])).unstack()
    quantiles.columns = ["low", "first", "median", "third", "high"]
    typical = quantiles["median"].copy()
    # Stages differ from each other by far more than their steps do; in percent of its own median each can be read.
    quantiles = quantiles.div(typical, axis=0).sub(1).mul(100)
    boxes = quantiles.reset_index().assign(row=lambda d: [f"stage {s}" for s in d["stage"]], ms=typical.to_numpy())
    outside = rows.merge(boxes[["stage", "low", "high", "row"]], on="stage")
    outside["off"] = 100 * (outside["ms"] / outside["stage"].map(typical) - 1)
    outside = outside[(outside["off"] < outside["low"]) | (outside["off"] > outside["high"])].head(MOST_POINTS)
    names = list(boxes["row"])
    stages = [int(s) for s in boxes["stage"]]
    color = alt.Color("row:N", scale=alt.Scale(domain=names, range=[stage_color(s) for s in stages]), legend=None)
    row_axis = alt.Axis(ticks=False, domain=False, labelPadding=8, labelOverlap=False)
    y = alt.Y("row:N", sort=names, title=None, axis=row_axis)
    scale, x_axis = alt.Scale(zero=False, nice=True), alt.Axis(tickCount=8)
    tooltip = [alt.Tooltip("row:N", title="stage"), alt.Tooltip("ms:Q", title="median, ms", format=".4~g")]
    tooltip += [
        alt.Tooltip(f"{end}:Q", title=f"2 % of the steps are {word}, %", format=".4~g")
        for end, word in (("low", "below"), ("high", "above"))
    ]
    title = "compute of a step against the stage's own median, %"
    base = alt.Chart(boxes).encode(y=y, tooltip=tooltip)
    whisker = base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q", scale=scale, title=title, axis=x_axis), x2="high:Q", color=color)
    box = base.mark_bar(height={"band": 0.55}, opacity=0.85).encode(x=alt.X("first:Q", scale=scale, title=title), x2="third:Q", color=color)
    middle = base.mark_tick(thickness=3, size=16, color="#1f2328").encode(x=alt.X("median:Q", scale=scale, title=title))
    point = (
        alt.Chart(outside)
        .mark_circle(size=28, opacity=0.7)
        .encode(
            y=y,
            x=alt.X("off:Q", scale=scale, title=title),
            color=color,
            tooltip=[alt.Tooltip("row:N", title="stage"), alt.Tooltip("step:Q", format="d"), alt.Tooltip("ms:Q", format=".4~g")],
        )
    )
    return alt.LayerChart(layer=[whisker, box, middle, point]).properties(height=min(30 * len(names) + 50, 700))
