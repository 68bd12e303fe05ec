"""The visible window of a timeline, reduced on the server to what the canvas can show. Arrays in, arrays out.

A bar narrower than a pixel cannot be told from its neighbours, so all bars of a row that begin in the same pixel are merged into
one, in the colour of the op that fills most of it. A window therefore never holds more bars than a few per pixel and row,
however many events the run has.

        events     |F0|F1|F2|..|B0|B1|..|B7|      one pixel     each wider than a pixel
        window     |== forward, 12 ops ====|                    |F0|F1|F2| as they are
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.charts.palette import OP_STYLES
from pptoolkit.telemetry.events import COMPUTE_OPS, Op

MAX_BARS = 100_000  # about 3 MB on the wire and well under 100 ms to draw
MAX_SPANS = 20_000
_Array = NDArray[Any]

_DRAWN = np.zeros(256, dtype=bool)
_THIN = np.zeros(256, dtype=bool)
for _op, _style in OP_STYLES.items():
    _DRAWN[_op] = True
    _THIN[_op] = _style.thin
_LANE_SHIFT = 48
_EVENT_COLUMNS = ("step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns", "bytes", "rank", "attempt")
_BAR_SOURCES = ("step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns", "bytes", "lane")
_SPAN_SOURCES = ("op", "start_ns", "end_ns", "step", "attempt", "lane")
_COMPUTES = np.zeros(256, dtype=bool)
_COMPUTES[[int(op) for op in COMPUTE_OPS]] = True
_BACKWARDS = [int(op) for op in COMPUTE_OPS if op is not Op.FORWARD]

BAR_COLUMNS: tuple[tuple[str, str], ...] = (
    ("start", "f4"),  # microseconds after the window's origin
    ("length", "f4"),  # microseconds
    ("step", "i4"),
    ("count", "u4"),  # events merged into this bar; 1: the event itself
    ("bytes", "f4"),
    ("lane", "u2"),
    ("stage", "i2"),
    ("micro_batch", "i2"),
    ("peer", "i2"),
    ("op", "u1"),
)
SPAN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("start", "f4"),
    ("warm", "f4"),  # end of the warm-up: the rank's first backward
    ("cool", "f4"),  # begin of the cool-down: the end of the rank's last forward
    ("end", "f4"),
    ("step", "i4"),
    ("lane", "u2"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One row of the Gantt."""

    rank: int
    replica: int
    stages: tuple[int, ...]

    @property
    def label(self) -> str:
        return f"rank {self.rank}"

    @property
    def stage_label(self) -> str:
        if not self.stages:
            return "no stage"
        return ("stage " if len(self.stages) == 1 else "stages ") + ", ".join(map(str, self.stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What the canvas gets: columns of bars and of step spans, relative to ``origin_ns``.

    Args:
        bars: :data:`BAR_COLUMNS`; one entry a bar.
        spans: :data:`SPAN_COLUMNS`; one entry a rank and step, in which everything that no bar covers is a bubble.
        pixel_ns: Events shorter than this were merged.
        events: Number of events the bars stand for.
    """

    origin_ns: int
    start_ns: int
    end_ns: int
    pixel_ns: float
    events: int
    bars: dict[str, _Array] = field(repr=False)
    spans: dict[str, _Array] = field(repr=False)


def lanes_of(stage_to_rank: Sequence[int], *, ranks: int) -> tuple[Lane, ...]:
    """Return the rows of a layout: replica by replica, within one by first stage, then rank. A rank that sent nothing has a row too.

    Args:
        stage_to_rank: Pipeline rank (within one replica) of each stage.
        ranks: Processes over all replicas; they are numbered replica by replica.
    """
    pipeline = max(stage_to_rank, default=0) + 1
    owned: list[list[int]] = [[] for _ in range(pipeline)]
    for stage, owner in enumerate(stage_to_rank):
        owned[owner].append(stage)
    lanes = [Lane(rank=rank, replica=rank // pipeline, stages=tuple(owned[rank % pipeline])) for rank in range(ranks)]
    return tuple(sorted(lanes, key=lambda lane: (lane.replica, lane.stages[:1] or (len(stage_to_rank),), lane.rank)))


def build_window(
    timeline: pd.DataFrame, lanes: tuple[Lane, ...], *, start_ns: int, end_ns: int, width_px: int, max_bars: int = MAX_BARS
) -> Window:
    """Cut the events that touch [start_ns, end_ns] and merge what is narrower than a pixel.

    Args:
        timeline: Events with rank and replica columns on one clock.
        lanes: Rows; events of other ranks are left out.
        start_ns: Begin of the window on the timeline's clock.
        end_ns: End of the window; later than ``start_ns``.
        width_px: Pixels that [start_ns, end_ns] covers.
        max_bars: Upper bound of the result; the pixel is made coarser until it holds.
    """
    end_ns = max(end_ns, start_ns + 1)
    pixel_ns = (end_ns - start_ns) / max(width_px, 1)
    events, whole_steps = _touching(_on_lanes(timeline, lanes), start_ns, end_ns)
    bars = _merge(events, start_ns, pixel_ns)
    while len(bars["start"]) > max_bars:
        pixel_ns *= 2
        bars = _merge(events, start_ns, pixel_ns)
    # The canvas finds the bar under the mouse by bisection within a row.
    order = np.lexsort((bars["start"], bars["lane"]))
    bars = {name: values[order] for name, values in bars.items()}
    return Window(
        origin_ns=start_ns,
        start_ns=start_ns,
        end_ns=end_ns,
        pixel_ns=pixel_ns,
        events=len(events["op"]),
        bars=_typed(bars, BAR_COLUMNS, start_ns),
        spans=_typed(_spans(whole_steps), SPAN_COLUMNS, start_ns),
    )


def _on_lanes(timeline: pd.DataFrame, lanes: tuple[Lane, ...]) -> dict[str, _Array]:
    """Return the timeline's columns with the row that each event belongs to; -1: none."""
    if not len(timeline) or not lanes:
        empty = np.zeros(0, dtype=np.int64)
        return {**dict.fromkeys((*_EVENT_COLUMNS, "lane"), empty), "op": empty.astype(np.uint8)}
    columns = {name: timeline[name].to_numpy() for name in _EVENT_COLUMNS}
    lane_of = np.full(max(int(columns["rank"].max()), *(lane.rank for lane in lanes)) + 1, -1, dtype=np.int64)
    for row, lane in enumerate(lanes):
        lane_of[lane.rank] = row
    columns["lane"] = lane_of[columns["rank"]]
    return columns


def _touching(columns: dict[str, _Array], start_ns: int, end_ns: int) -> tuple[dict[str, _Array], dict[str, _Array]]:
    """Return the events inside the window that are drawn, and what spans are made of: all events of the steps that it touches."""
    # A clock event keeps an offset in end_ns, which is no time at all.
    possible = (columns["lane"] >= 0) & (columns["step"] >= 0) & (columns["op"] != int(Op.CLOCK))
    inside = possible & (columns["start_ns"] < end_ns) & (columns["end_ns"] > start_ns)
    if not inside.any():
        none = {name: values[:0] for name, values in columns.items()}
        return none, none
    steps = columns["step"][inside]
    around = possible & (columns["step"] >= steps.min()) & (columns["step"] <= steps.max())
    drawn = np.flatnonzero(inside & _DRAWN[columns["op"]])
    chosen = slice(None) if around.all() else np.flatnonzero(around)
    return {name: columns[name][drawn] for name in _BAR_SOURCES}, {name: columns[name][chosen] for name in _SPAN_SOURCES}


def _merge(events: dict[str, _Array], origin_ns: int, pixel_ns: float) -> dict[str, _Array]:
    """Keep what is at least a pixel wide; merge the rest per row and pixel."""
    narrow = (events["end_ns"] - events["start_ns"]) < pixel_ns
    wide = {name: values[~narrow] for name, values in events.items()}
    wide["count"] = np.ones(len(wide["op"]), dtype=np.int64)
    if not narrow.any():
        return _renamed(wide)
    merged = _merge_narrow(events, np.flatnonzero(narrow), origin_ns, pixel_ns)
    return _renamed({name: np.concatenate([wide[name], merged[name]]) for name in wide})


def _merge_narrow(events: dict[str, _Array], narrow: _Array, origin_ns: int, pixel_ns: float) -> dict[str, _Array]:
    """Merge those events, at the places ``narrow``, that begin in the same pixel of the same row and track; a lone one stays itself."""
    pixel = np.floor((events["start_ns"][narrow] - origin_ns) / pixel_ns).astype(np.int64)
    pixel -= pixel.min()
    track = events["lane"][narrow].astype(np.int64) * 2 + _THIN[events["op"][narrow]]
    cell = track * (int(pixel.max()) + 1) + pixel
    order = np.argsort(cell, kind="stable")
    cell, place = cell[order], narrow[order]
    small = {name: values[place] for name, values in events.items()}
    first = np.flatnonzero(np.r_[True, cell[1:] != cell[:-1]])
    count = np.diff(np.r_[first, len(cell)])

    merged = {name: values[first].copy() for name, values in small.items()}
    merged["end_ns"] = np.maximum.reduceat(small["end_ns"], first)
    merged["start_ns"] = np.minimum.reduceat(small["start_ns"], first)
    merged["bytes"] = np.add.reduceat(small["bytes"], first)
    merged["op"] = _dominant_op(small, first, count)
    several = count > 1
    for name in ("micro_batch", "peer", "stage"):
        same = np.minimum.reduceat(small[name], first) == np.maximum.reduceat(small[name], first)
        merged[name] = np.where(several & ~same, -1, merged[name])
    merged["count"] = count
    return merged


def _dominant_op(small: dict[str, _Array], first: _Array, count: _Array) -> _Array:
    """Return for each merged bar the op that fills most of it."""
    length = np.maximum(small["end_ns"] - small["start_ns"], 1).astype(np.float64)
    bar = np.repeat(np.arange(len(first)), count)
    ops = np.array([int(op) for op in OP_STYLES], dtype=np.uint8)
    column = np.zeros(256, dtype=np.int64)
    column[ops] = np.arange(len(ops))
    filled = np.bincount(bar * len(ops) + column[small["op"]], weights=length, minlength=len(first) * len(ops))
    dominant: _Array = ops[filled.reshape(len(first), len(ops)).argmax(axis=1)]
    return dominant


def _spans(columns: dict[str, _Array]) -> dict[str, _Array]:
    """Return for each row and step where it begins and ends, and where warm-up ends and cool-down begins."""
    whole = columns["op"] == int(Op.STEP)
    computes = np.flatnonzero(_COMPUTES[columns["op"]])
    computed = {name: values[computes] for name, values in columns.items()}
    edges = np.flatnonzero(whole if whole.any() else _DRAWN[columns["op"]])
    source = {name: values[edges] for name, values in columns.items()}
    keys, of = np.unique(_row_step(source), return_inverse=True)
    if not len(keys):
        empty = np.zeros(0, dtype=np.int64)
        return {name: empty for name, _ in SPAN_COLUMNS}
    start = _extreme(np.minimum, source["start_ns"], of, len(keys))
    end = _extreme(np.maximum, source["end_ns"], of, len(keys))
    if len(keys) > MAX_SPANS:
        return _one_span_a_row(keys, start, end)
    warm, cool = end.copy(), end.copy()
    for ops, side, pick, target in (
        (_BACKWARDS, "start_ns", np.minimum, warm),
        ([int(Op.FORWARD)], "end_ns", np.maximum, cool),
    ):
        chosen = np.isin(computed["op"], ops)
        row_step = _row_step(computed)[chosen]
        at = np.minimum(np.searchsorted(keys, row_step), len(keys) - 1)
        known = keys[at] == row_step
        found = _extreme(pick, computed[side][chosen][known], at[known], len(keys))
        has = np.bincount(at[known], minlength=len(keys)) > 0
        target[has] = found[has]
    # GPipe runs all forwards first: then there is no steady phase, and cool-down begins where warm-up ends.
    return {
        "start": start,
        "warm": warm,
        "cool": np.maximum(cool, warm),
        "end": end,
        "step": keys & 0xFFFFFFFF,
        "lane": keys >> _LANE_SHIFT,
    }


def _one_span_a_row(keys: _Array, start: _Array, end: _Array) -> dict[str, _Array]:
    rows, of = np.unique(keys >> _LANE_SHIFT, return_inverse=True)
    first, last = _extreme(np.minimum, start, of, len(rows)), _extreme(np.maximum, end, of, len(rows))
    return {"start": first, "warm": first, "cool": last, "end": last, "step": np.full(len(rows), -1), "lane": rows}


def _row_step(columns: dict[str, _Array]) -> _Array:
    """Return one number for row, attempt and step: a step that was repeated after a restart is drawn twice, not stretched."""
    return (
        (columns["lane"].astype(np.int64) << _LANE_SHIFT) + (columns["attempt"].astype(np.int64) << 32) + columns["step"].astype(np.int64)
    )


def _extreme(pick: np.ufunc, values: _Array, of: _Array, groups: int) -> _Array:
    worst = np.iinfo(np.int64).max if pick is np.minimum else np.iinfo(np.int64).min
    result = np.full(groups, worst, dtype=np.int64)
    pick.at(result, of, values)
    return result


def _renamed(events: dict[str, _Array]) -> dict[str, _Array]:
    return {**events, "start": events["start_ns"], "length": events["end_ns"] - events["start_ns"]}


def _typed(columns: dict[str, _Array], layout: tuple[tuple[str, str], ...], origin_ns: int) -> dict[str, _Array]:
    """Convert to the wire's types; times become microseconds after the origin, exact to a fraction of a pixel."""
    typed: dict[str, _Array] = {}
    for name, kind in layout:
        values = columns[name]
        if name in ("start", "warm", "cool", "end"):
            values = (values - origin_ns) / 1e3
        elif name == "length":
            values = values / 1e3
        typed[name] = values.astype("<" + kind)
    return typed
