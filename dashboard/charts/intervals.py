"""Step times with their intervals under each other: measured, predicted, achieved, and what other ways of cutting would give."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from dashboard.charts.numbers import number
from dashboard.charts.palette import RUN_COLORS

KIND_COLORS = {"measured": RUN_COLORS[0], "predicted": "#e69f00", "others": "#8f8f99"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """One row: a step time in seconds; low and high equal to it where no interval is known."""

    label: str
    kind: str
    seconds: float
    low_s: float
    high_s: float


def interval_rows(rows: Sequence[StepTime]) -> pd.DataFrame:
    """Return label, kind and, in ms, value, low and high of each row."""
    return pd.DataFrame(
        [(r.label, r.kind, r.seconds * 1e3, r.low_s * 1e3, r.high_s * 1e3) for r in rows], columns=["label", "kind", "ms", "low", "high"]
    )


def interval_chart(rows: Sequence[StepTime]) -> alt.LayerChart:
    """Draw one dot with its 95 % interval a row, in ms."""
    data = interval_rows(rows).assign(text=[_label(r.seconds * 1e3) for r in rows])
    kinds = [kind for kind in KIND_COLORS if (data["kind"] == kind).any()]
    color = alt.Color("kind:N", scale=alt.Scale(domain=kinds, range=[KIND_COLORS[k] for k in kinds]), legend=None)
    low, high = (float(data["low"].min()), float(data["high"].max())) if len(data) else (0.0, 1.0)
    air = max(high - low, 0.02 * high) * 0.25
    scale = alt.Scale(domain=[max(0.0, low - air), high + 1.6 * air], nice=False)
    base = alt.Chart(data).encode(
        y=alt.Y(
            "label:N",
            sort=list(data["label"]),
            title=None,
            axis=alt.Axis(ticks=False, domain=False, labelLimit=260, labelPadding=8, labelOverlap=False),
        ),
        color=color,
        tooltip=[
            alt.Tooltip("label:N", title="what"),
            alt.Tooltip("ms:Q", title="step time, ms", format=".2f"),
            alt.Tooltip("low:Q", title="95 % interval from", format=".2f"),
            alt.Tooltip("high:Q", title="to", format=".2f"),
        ],
    )
    bar = base.mark_rule(strokeWidth=5, opacity=0.45, strokeCap="round").encode(
        x=alt.X("low:Q", scale=scale, title="step time, ms", axis=alt.Axis(tickCount=8)), x2="high:Q"
    )
    dot = base.mark_point(filled=True, size=110, opacity=1).encode(x=alt.X("ms:Q", scale=scale))
    text = base.mark_text(align="left", dx=10, dy=-11, fontSize=12, fontWeight=600).encode(x=alt.X("ms:Q", scale=scale), text="text:N")
    return alt.LayerChart(layer=[bar, dot, text]).properties(height=34 * len(rows) + 50)


def _label(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 1000 else f"{number(ms)} ms"
