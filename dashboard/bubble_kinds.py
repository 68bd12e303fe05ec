"""Bubbles in colours: which gaps between the computations of a rank are of what kind.

There are two ways of telling them apart. What a rank is seen to do in a gap says what it waits for, which is what the events themselves
know; the cause says why it waits, which a replay of the step finds out (:mod:`dashboard.bubble_causes`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.bubble_causes import CauseFinder
from dashboard.charts.numbers import percent
from dashboard.charts.palette import CAUSE_COLORS, CAUSE_LABELS, STATE_COLORS, STATE_LABELS
from dashboard.window import Lane
from pptoolkit.analysis.bubbles import find_bubbles
from pptoolkit.analysis.causes import CAUSES
from pptoolkit.telemetry.events import Op

GAP_COLUMNS: tuple[tuple[str, str], ...] = (("start", "f4"), ("length", "f4"), ("lane", "u2"), ("kind", "u1"), ("share", "u1"))
MOST_GAPS = 20_000
LEAST_SHARE = 0.0005  # of the ranks' time; a smaller cause would be a legend without a bubble
Gaps = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class BubbleKind:
    """One kind of bubble, as the legend shows it; ``word`` stands inside a bubble that is wide enough, ``total`` beside the label."""

    name: str
    label: str
    color: str
    word: str = ""
    total: str = ""


KINDS: tuple[BubbleKind, ...] = tuple(
    BubbleKind(name, f"bubble: {STATE_LABELS[name]}", STATE_COLORS[name])
    for name in ("recv_wait", "send_wait", "collective", "optimizer", "data", "checkpoint", "host")
)
CAUSE_KINDS: tuple[BubbleKind, ...] = tuple(
    BubbleKind(name, CAUSE_LABELS[name], CAUSE_COLORS[name], word=name.replace("_", " ")) for name in CAUSES
)


def build_gaps(timeline: pd.DataFrame, lanes: tuple[Lane, ...], *, origin_ns: int, start_ns: int, end_ns: int) -> Gaps:
    """Return the gaps that touch a window with what the rank does in them, an index into :data:`KINDS`; the longest ones of very many.

    Args:
        timeline: Events on one clock, of whole steps.
        lanes: Rows.
        origin_ns: What times are counted from, in microseconds.
        start_ns: Begin of the window.
        end_ns: Its end.
    """
    gaps = find_bubbles(timeline[timeline["op"] != int(Op.CLOCK)])
    number = {kind.name: i for i, kind in enumerate(KINDS)}
    names = [kind.name for kind in KINDS]
    share = gaps[[f"{name}_s" for name in names]].max(axis=1) / gaps["duration_s"].clip(lower=1e-12) if len(gaps) else 0.0
    gaps = gaps.assign(kind=gaps["doing"].map(number), share=share)
    return _columns(_inside(gaps, lanes, start_ns, end_ns), lanes, origin_ns)


def build_cause_gaps(
    timeline: pd.DataFrame,
    lanes: tuple[Lane, ...],
    steps: pd.DataFrame,
    finder: CauseFinder,
    *,
    origin_ns: int,
    start_ns: int,
    end_ns: int,
) -> tuple[Gaps, tuple[BubbleKind, ...], int]:
    """Return the gaps of ``steps`` by cause, the kinds with what each costs in them, and how many steps could not be told apart.

    Args:
        timeline: Events on one clock, of these steps at least.
        lanes: Rows.
        steps: Rows of the scene's steps.
        finder: Remembers what was found.
        origin_ns: What times are counted from, in microseconds.
        start_ns: Begin of the window.
        end_ns: Its end.
    """
    found = [finder.of_step(timeline, steps.iloc[[i]]) for i in range(len(steps))]
    known = [gaps for gaps in found if gaps is not None]
    empty = pd.DataFrame(columns=["rank", "start_ns", "end_ns", "cause", "share", *CAUSES])
    gaps = pd.concat(known, ignore_index=True) if known else empty
    rank_s = sum(float(s) for s, one in zip(steps["step_time_s"], found, strict=True) if one is not None) * max(gaps["rank"].nunique(), 1)
    totals = {cause: float(gaps[cause].sum()) / max(rank_s, 1e-12) for cause in CAUSES}
    kinds = tuple(replace(kind, total=percent(totals[kind.name]) if abs(totals[kind.name]) >= LEAST_SHARE else "") for kind in CAUSE_KINDS)
    shown = _inside(gaps.assign(kind=gaps["cause"]), lanes, start_ns, end_ns)
    return _columns(shown, lanes, origin_ns), kinds, len(found) - len(known)


def _inside(gaps: pd.DataFrame, lanes: Sequence[Lane], start_ns: int, end_ns: int) -> pd.DataFrame:
    touching = (gaps["start_ns"] < end_ns) & (gaps["end_ns"] > start_ns) & gaps["rank"].isin([lane.rank for lane in lanes])
    gaps = gaps[touching]
    if len(gaps) <= MOST_GAPS:
        return gaps
    return gaps.assign(length=gaps["end_ns"] - gaps["start_ns"]).nlargest(MOST_GAPS, "length")


def _columns(gaps: pd.DataFrame, lanes: Sequence[Lane], origin_ns: int) -> Gaps:
    row = {lane.rank: i for i, lane in enumerate(lanes)}
    starts, ends = (gaps[name].to_numpy(dtype=np.int64) for name in ("start_ns", "end_ns"))
    columns = {
        "start": (starts - origin_ns) / 1e3,
        "length": (ends - starts) / 1e3,
        "lane": gaps["rank"].map(row).to_numpy(dtype=np.int64),
        "kind": gaps["kind"].to_numpy(dtype=np.int64),
        "share": np.round(100 * gaps["share"].to_numpy(dtype=np.float64)),
    }
    return {name: columns[name].astype("<" + of) for name, of in GAP_COLUMNS}
