"""A value against what it could be: bars with a mark where the limit or the ceiling is."""

from collections.abc import Sequence
from dataclasses import dataclass

import altair as alt
import pandas as pd

from dashboard.charts.palette import RUN_COLORS


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """One bar; ``low`` and ``high`` around the value where an interval is known, ``limit`` None where it is not known."""

    label: str
    value: float
    limit: float | None
    low: float | None = None
    high: float | None = None


def limit_chart(bars: Sequence[Against], *, title: str, value: str, limit: str) -> alt.LayerChart:
    """Draw one bar a row, with a tick at its limit.

    Args:
        bars: From top to bottom.
        title: Title of the axis, with its unit.
        value: What the bars are, in the legend's words.
        limit: What the ticks are.
    """
    labels = [bar.label for bar in bars]
    data = pd.DataFrame(
        {
            "label": labels,
            "value": [bar.value for bar in bars],
            "limit": [bar.limit for bar in bars],
            "low": [bar.value if bar.low is None else bar.low for bar in bars],
            "high": [bar.value if bar.high is None else bar.high for bar in bars],
            "kind": value,
            "mark": limit,
        }
    )
    y = alt.Y(
        "label:N", sort=labels, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=260, labelPadding=8, labelOverlap=False)
    )
    has_limit = any(bar.limit is not None for bar in bars)
    color = alt.Color(
        "kind:N",
        scale=alt.Scale(domain=[value, limit] if has_limit else [value], range=[RUN_COLORS[0], RUN_COLORS[1]]),
        legend=alt.Legend(title=None, orient="top", labelLimit=300, symbolType="square") if has_limit else None,  # else the axis says it
    )
    tooltip = [
        alt.Tooltip("label:N", title="what"),
        alt.Tooltip("value:Q", title=value, format=".4~g"),
        alt.Tooltip("limit:Q", title=limit, format=".4~g"),
    ]
    x_value = alt.X("value:Q", title=title, scale=alt.Scale(zero=True), axis=alt.Axis(tickCount=8))
    bar = alt.Chart(data).mark_bar(height={"band": 0.6}).encode(y=y, x=x_value, color=color, tooltip=tooltip)
    spread = alt.Chart(data).mark_rule(strokeWidth=2, opacity=0.8).encode(y=y, x=alt.X("low:Q", title=title), x2="high:Q")
    known = data[data["limit"].notna()]
    tick = (
        alt.Chart(known)
        .mark_tick(thickness=4, size=24)
        .encode(y=y, x=alt.X("limit:Q", title=title), color=alt.Color("mark:N", scale=color["scale"]), tooltip=tooltip)
    )
    layers = [bar, spread, tick] if len(known) else [bar, spread]
    return alt.LayerChart(layer=layers).properties(height=30 * len(labels) + (80 if len(known) else 50))
