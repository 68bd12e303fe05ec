"""Bubbles in colours: which gaps between the computations of a rank are of what kind.

What a rank is seen to do in a gap says what it waits for, which is what the events themselves know. Another way of telling bubbles
apart, such as a cause found by analysis, takes this module's place by handing out the same columns with its own :data:`KINDS`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.charts.palette import STATE_COLORS, STATE_LABELS
from dashboard.window import Lane
from pptoolkit.analysis.bubbles import find_bubbles
from pptoolkit.telemetry.events import Op

GAP_COLUMNS: tuple[tuple[str, str], ...] = (("start", "f4"), ("length", "f4"), ("lane", "u2"), ("kind", "u1"))
MOST_GAPS = 20_000


@dataclass(frozen=True, slots=True)
class BubbleKind:
    """One kind of bubble, as the legend shows it."""

    name: str
    label: str
    color: str


KINDS: tuple[BubbleKind, ...] = tuple(
    BubbleKind(name, f"bubble: {STATE_LABELS[name]}", STATE_COLORS[name])
    for name in ("recv_wait", "send_wait", "collective", "optimizer", "data", "checkpoint", "host")
)


def build_gaps(timeline: pd.DataFrame, lanes: tuple[Lane, ...], *, origin_ns: int, start_ns: int, end_ns: int) -> dict[str, NDArray[Any]]:
    """Return the gaps that touch a window with their kind, an index into :data:`KINDS`; the longest ones where there are very many.

    Args:
        timeline: Events on one clock, of whole steps.
        lanes: Rows.
        origin_ns: What times are counted from, in microseconds.
        start_ns: Begin of the window.
        end_ns: Its end.
    """
    gaps = find_bubbles(timeline[timeline["op"] != int(Op.CLOCK)])
    row = {lane.rank: i for i, lane in enumerate(lanes)}
    gaps = gaps[(gaps["start_ns"] < end_ns) & (gaps["end_ns"] > start_ns) & gaps["rank"].isin(list(row))]
    if len(gaps) > MOST_GAPS:
        gaps = gaps.nlargest(MOST_GAPS, "duration_s")
    number = {kind.name: i for i, kind in enumerate(KINDS)}
    starts, ends = (gaps[name].to_numpy(dtype=np.int64) for name in ("start_ns", "end_ns"))
    columns = {
        "start": (starts - origin_ns) / 1e3,
        "length": (ends - starts) / 1e3,
        "lane": gaps["rank"].map(row).to_numpy(dtype=np.int64),
        "kind": gaps["doing"].map(number).to_numpy(dtype=np.int64),
    }
    return {name: columns[name].astype("<" + of) for name, of in GAP_COLUMNS}
