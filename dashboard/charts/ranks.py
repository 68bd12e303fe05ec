"""Every rank as a tile: a rank that computes among many that wait, or one that is silent, is seen before anything is read."""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from dashboard.charts.numbers import duration
from dashboard.charts.palette import RANK_COLORS, ink_on
from dashboard.health import RankPulse, kind_of

MOST_WRITTEN = 16  # tiles with words in them
_WIDE, _NARROW = 8, 32  # tiles in a row
_PAGE_PX = 1200  # width of the page's content on a laptop; what does not fit is cut and stands in the tooltip


def rank_rows(found: Sequence[RankPulse]) -> pd.DataFrame:
    """Return one row a rank: where its tile is, of what kind it is, and what is written into it."""
    across = min(len(found), _WIDE if len(found) <= MOST_WRITTEN else _NARROW)
    rows = [
        {
            "rank": p.rank,
            "column": i % across,
            "row": i // across,
            "kind": kind_of(p),
            "name": f"rank {p.rank}",
            "does": p.doing or p.state,
            "seen": "" if p.age_s is None else f"{duration(p.age_s)} ago",
            "step": p.step,
            "ink": ink_on(RANK_COLORS[kind_of(p)]),
        }
        for i, p in enumerate(found)
    ]
    return pd.DataFrame(rows)


def rank_chart(rows: pd.DataFrame) -> alt.LayerChart:
    """Draw :func:`rank_rows`; few ranks have words in their tiles, many only a colour."""
    kinds = [kind for kind in RANK_COLORS if (rows["kind"] == kind).any()]
    scale = alt.Scale(domain=kinds, range=[RANK_COLORS[kind] for kind in kinds])
    legend = alt.Legend(title=None, orient="top", labelLimit=300, symbolType="square")
    base = alt.Chart(rows).encode(
        x=alt.X("column:O", axis=None, scale=alt.Scale(paddingInner=0.04, paddingOuter=0)),
        y=alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0.08, paddingOuter=0)),
    )
    tiles = base.mark_rect(cornerRadius=4).encode(
        color=alt.Color("kind:N", scale=scale, legend=legend),
        tooltip=[
            alt.Tooltip("name:N", title="rank"),
            alt.Tooltip("does:N", title="does"),
            alt.Tooltip("seen:N", title="last sign of life"),
            alt.Tooltip("step:Q", title="step", format="d"),
        ],
    )
    lines = int(rows["row"].max()) + 1
    if len(rows) > MOST_WRITTEN:
        return alt.LayerChart(layer=[tiles]).properties(height=min(22 * lines, 500) + 40)
    room = _PAGE_PX // (int(rows["column"].max()) + 1) - 16
    ink = alt.Color("ink:N", scale=None)
    words = [
        base.mark_text(dy=dy, fontSize=size, fontWeight="bold" if column == "name" else "normal", limit=room).encode(
            text=f"{column}:N", color=ink
        )
        for column, dy, size in (("name", -19, 13), ("does", 0, 11), ("seen", 17, 11))
    ]
    return alt.LayerChart(layer=[tiles, *words]).properties(height=86 * lines + 40)
