"""Bars of parts under each other: what a step is made of, plan by plan; what a message spends its time with, border by border."""

from collections.abc import Mapping, Sequence

import altair as alt
import pandas as pd

from dashboard.charts.numbers import three_digits
from dashboard.charts.palette import ink_on


def stacked_rows(bars: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    """Return one row per bar and part: row, part, value, begin, end, text; negative parts are left out.

    Args:
        bars: Values by bar and part.
    """
    longest = max((sum(max(value, 0.0) for value in parts.values()) for parts in bars.values()), default=0.0)
    rows = []
    for bar, parts in bars.items():
        at = 0.0
        for part, value in parts.items():
            if value <= 0:
                continue
            text = three_digits(value) if value > 0.05 * longest else ""
            rows.append({"row": bar, "part": part, "value": value, "begin": at, "end": at + value, "text": text})
            at += value
    return pd.DataFrame(rows, columns=["row", "part", "value", "begin", "end", "text"])


def stacked_chart(
    rows: pd.DataFrame, colors: Mapping[str, str], *, title: str, order: Sequence[str] | None = None, row_height: int = 34
) -> alt.LayerChart:
    """Draw :func:`stacked_rows`.

    Args:
        rows: The bars.
        colors: Colour of each part, in the order of the legend.
        title: Title of the axis, with its unit.
        order: Bars from top to bottom; default: as they come.
        row_height: Pixels a bar.
    """
    bars = list(order or dict.fromkeys(rows["row"]))
    parts = [part for part in colors if (rows["part"] == part).any()]
    data = rows.assign(middle=(rows["begin"] + rows["end"]) / 2, ink=[ink_on(colors[part]) for part in rows["part"]])
    row_axis = alt.Axis(ticks=False, domain=False, labelLimit=260, labelPadding=8, labelOverlap=False)
    base = alt.Chart(data).encode(y=alt.Y("row:N", sort=bars, title=None, axis=row_axis))
    marks = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X("begin:Q", title=title, scale=alt.Scale(nice=False, domainMin=0), axis=alt.Axis(tickCount=8)),
        x2="end:Q",
        color=alt.Color(
            "part:N",
            scale=alt.Scale(domain=parts, range=[colors[part] for part in parts]),
            sort=parts,
            legend=alt.Legend(title=None, orient="top", labelLimit=300),
        ),
        tooltip=[
            alt.Tooltip("row:N", title="what"),
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("value:Q", title=title, format=".4~g"),
        ],
    )
    text = base.mark_text(fontSize=12, fontWeight=600).encode(x="middle:Q", text="text:N", color=alt.Color("ink:N", scale=None))
    return alt.LayerChart(layer=[marks, text]).properties(height=row_height * max(len(bars), 1) + 74)
