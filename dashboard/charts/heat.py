"""Stage by micro-batch: how long each computes, so that a slow stage (a row) and a slow micro-batch (a column) show at once."""

import altair as alt
import numpy as np
import pandas as pd

from pptoolkit.telemetry.events import COMPUTE_OPS

MOST_MICRO_BATCHES = 256


def heat_rows(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the mean compute of each stage and micro-batch over the steps in ``timeline``: stage, micro_batch, ms."""
    compute = timeline[timeline["op"].isin([int(op) for op in COMPUTE_OPS]) & (timeline["micro_batch"] >= 0)]
    if compute.empty:
        return pd.DataFrame(columns=["stage", "micro_batch", "ms"])
    ms = (compute["end_ns"] - compute["start_ns"]) / 1e6
    steps = compute.groupby("stage")["step"].nunique()
    replicas = max(int(compute["replica"].nunique()), 1)
    cells = compute[["stage", "micro_batch"]].assign(ms=ms)
    total = pd.DataFrame(cells.groupby(["stage", "micro_batch"], as_index=False)[["ms"]].sum())
    total["ms"] /= total["stage"].map(steps) * replicas
    every = -(-int(total["micro_batch"].max() + 1) // MOST_MICRO_BATCHES)
    if every > 1:
        total["micro_batch"] = (total["micro_batch"] // every) * every
        total = pd.DataFrame(total.groupby(["stage", "micro_batch"], as_index=False)[["ms"]].mean())
    return total.astype({"stage": np.int64, "micro_batch": np.int64})


def heat_chart(rows: pd.DataFrame) -> alt.LayerChart:
    """Draw :func:`heat_rows`; the number is written into a cell where there is room."""
    stages = sorted(rows["stage"].unique())
    columns = rows["micro_batch"].nunique()
    data = rows.assign(row=[f"stage {s}" for s in rows["stage"]])
    base = alt.Chart(data).encode(
        x=alt.X("micro_batch:O", title="micro-batch", axis=alt.Axis(labelAngle=0, labelOverlap=True), scale=alt.Scale(paddingInner=0.02)),
        y=alt.Y(
            "row:N",
            sort=[f"stage {s}" for s in stages],
            title=None,
            axis=alt.Axis(ticks=False, domain=False, labelPadding=8),
            scale=alt.Scale(paddingInner=0.06),
        ),
    )
    cells = base.mark_rect().encode(
        color=alt.Color("ms:Q", title="ms", scale=alt.Scale(scheme="blues"), legend=alt.Legend(gradientLength=120, format=".3~g")),
        tooltip=[
            alt.Tooltip("row:N", title="stage"),
            alt.Tooltip("micro_batch:O", title="micro-batch"),
            alt.Tooltip("ms:Q", title="compute, ms", format=".3f"),
        ],
    )
    height = 30 * len(stages) + 46
    if columns > 20 or len(stages) > 24:
        return alt.LayerChart(layer=[cells]).properties(height=min(height, 620))
    dark = 0.45 * float(rows["ms"].min()) + 0.55 * float(rows["ms"].max())
    text = base.mark_text(fontSize=11).encode(
        text=alt.Text("ms:Q", format=".3g"), color=alt.condition(f"datum.ms > {dark}", alt.value("white"), alt.value("#1f2328"))
    )
    return alt.LayerChart(layer=[cells, text]).properties(height=height)
