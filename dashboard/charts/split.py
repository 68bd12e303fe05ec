"""Where each rank's step goes: the accounting's parts as stacked bars, and the same as a table."""

from collections.abc import Mapping

import altair as alt
import pandas as pd

from dashboard.charts.palette import STATE_COLORS, STATE_LABELS, ink_on


def split_rows(parts: Mapping[int, Mapping[str, float]], labels: Mapping[int, str]) -> pd.DataFrame:
    """Return one row per rank and part: row, part, order, ms, share.

    Args:
        parts: Seconds a step by rank and by part of the accounting.
        labels: What a person reads for each rank.
    """
    rows = []
    for rank in sorted(parts):
        total = sum(parts[rank].values())
        for order, state in enumerate(STATE_LABELS):
            seconds = parts[rank].get(state, 0.0)
            if seconds:
                share = seconds / total if total else 0.0
                rows.append(
                    {
                        "row": labels.get(rank, f"rank {rank}"),
                        "part": STATE_LABELS[state],
                        "order": order,
                        "ms": seconds * 1e3,
                        "share": share,
                    }
                )
    return pd.DataFrame(rows, columns=["row", "part", "order", "ms", "share"])


def split_chart(rows: pd.DataFrame) -> alt.LayerChart:
    """Draw :func:`split_rows` as one stacked bar a rank, with the share written inside where there is room."""
    present = [state for state in STATE_LABELS if (rows["part"] == STATE_LABELS[state]).any()]
    scale = alt.Scale(domain=[STATE_LABELS[s] for s in present], range=[STATE_COLORS[s] for s in present])
    longest = float(rows.groupby("row")["ms"].sum().max()) if len(rows) else 1.0
    ends = rows.groupby("row", sort=False)["ms"].cumsum()
    placed = rows.assign(
        end=ends,
        begin=ends - rows["ms"],
        text=[f"{s:.0%}".replace("%", " %") if w > 0.055 * longest else "" for s, w in zip(rows["share"], rows["ms"], strict=True)],
    )
    inks = {STATE_LABELS[state]: ink_on(color) for state, color in STATE_COLORS.items()}
    placed["ink"] = [inks[part] for part in placed["part"]]
    placed["middle"] = (placed["begin"] + placed["end"]) / 2
    order = list(dict.fromkeys(rows["row"]))
    base = alt.Chart(placed).encode(
        y=alt.Y(
            "row:N", sort=order, title=None, axis=alt.Axis(ticks=False, domain=False, labelLimit=220, labelPadding=8, labelOverlap=False)
        )
    )
    bars = base.mark_bar(height={"band": 0.72}).encode(
        x=alt.X("begin:Q", title="time per step, ms", scale=alt.Scale(nice=False, domainMin=0), axis=alt.Axis(tickCount=8)),
        x2="end:Q",
        color=alt.Color("part:N", scale=scale, sort=scale["domain"], legend=alt.Legend(title=None, orient="top", labelLimit=260)),
        tooltip=[
            alt.Tooltip("row:N", title="rank"),
            alt.Tooltip("part:N", title="part"),
            alt.Tooltip("ms:Q", title="ms per step", format=".2f"),
            alt.Tooltip("share:Q", title="share", format=".1%"),
        ],
    )
    text = base.mark_text(fontSize=12, fontWeight=600).encode(x="middle:Q", text="text:N", color=alt.Color("ink:N", scale=None))
    return alt.LayerChart(layer=[bars, text]).properties(height=28 * len(order) + 80)
