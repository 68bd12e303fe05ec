"""What rises and falls under the Gantt: micro-batches in flight and memory, rank by rank, on the same time axis. Arrays in, arrays out."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dashboard.window import Lane
from pptoolkit.telemetry.events import Op

POINTS = 500  # a rank and kind: finer than this no eye sees
MOST_LANES = 24
IN_FLIGHT, MEMORY = 0, 1
LEVEL_COLUMNS: tuple[tuple[str, str], ...] = (("start", "f4"), ("value", "f4"), ("lane", "u2"), ("kind", "u1"))
_RELEASE = (int(Op.BACKWARD), int(Op.BACKWARD_WEIGHT))
_Array = NDArray[Any]


def build_levels(
    timeline: pd.DataFrame, lanes: tuple[Lane, ...], *, origin_ns: int, start_ns: int, end_ns: int, points: int = POINTS
) -> dict[str, _Array]:
    """Return the points of all curves inside a window, ordered by kind, row and time; a value holds until the next point.

    Args:
        timeline: Events on one clock, of whole steps.
        lanes: Rows; beyond :data:`MOST_LANES` they are represented by evenly chosen ones.
        origin_ns: What times are counted from, in microseconds.
        start_ns: Begin of the window.
        end_ns: Its end.
        points: Most points of a curve.
    """
    parts: list[tuple[int, int, _Array, _Array]] = []
    every = -(-len(lanes) // MOST_LANES)
    columns = {name: timeline[name].to_numpy() for name in ("rank", "op", "start_ns", "end_ns", "memory_bytes")}
    for row, lane in list(enumerate(lanes))[::every]:
        at = columns["rank"] == lane.rank
        mine = {name: values[at] for name, values in columns.items()}
        for kind, (times, values) in ((IN_FLIGHT, _flight_of(mine)), (MEMORY, _memory_of(mine))):
            inside = (times >= start_ns) & (times <= end_ns)
            if inside.any():
                parts.append((kind, row, *_thinned(times[inside], values[inside], start_ns, end_ns, points)))
    parts.sort(key=lambda part: part[:2])
    empty = np.zeros(0)
    joined = {
        "start": np.concatenate([(times - origin_ns) / 1e3 for _, _, times, _ in parts] or [empty]),
        "value": np.concatenate([values for *_, values in parts] or [empty]),
        "lane": np.concatenate([np.full(len(times), row) for _, row, times, _ in parts] or [empty]),
        "kind": np.concatenate([np.full(len(times), kind) for kind, _, times, _ in parts] or [empty]),
    }
    return {name: joined[name].astype("<" + of) for name, of in LEVEL_COLUMNS}


def in_flight(events: pd.DataFrame) -> tuple[_Array, _Array]:
    """Return when the number of micro-batches in flight changes, and to what: each is from its forward's begin to its backward's end."""
    return _flight_of({name: events[name].to_numpy() for name in ("op", "start_ns", "end_ns")})


def _flight_of(events: dict[str, _Array]) -> tuple[_Array, _Array]:
    op = events["op"]
    begun = events["start_ns"][op == int(Op.FORWARD)]
    # Where I and W are apart, the activation is let go of by W; a W beside a whole B never occurs.
    done = events["end_ns"][np.isin(op, _RELEASE)]
    # What ends at a moment makes room before what begins at it.
    times = np.concatenate([done, begun])
    change = np.concatenate([-np.ones(len(done)), np.ones(len(begun))])
    order = np.argsort(times, kind="stable")
    return times[order], np.maximum(np.cumsum(change[order]), 0)


def _memory_of(events: dict[str, _Array]) -> tuple[_Array, _Array]:
    known = events["memory_bytes"] > 0
    times, values = events["end_ns"][known], events["memory_bytes"][known]
    order = np.argsort(times, kind="stable")
    return times[order], values[order].astype(np.float64)


def _thinned(times: _Array, values: _Array, start_ns: int, end_ns: int, points: int) -> tuple[_Array, _Array]:
    """Keep the highest point of each of ``points`` slots: a peak must not vanish."""
    if len(times) <= points:
        return times, values
    slot = ((times - start_ns) * points // max(end_ns - start_ns, 1)).astype(np.int64)
    order = np.lexsort((-values, slot))
    first = order[np.r_[True, np.diff(slot[order]) != 0]]
    return times[first], values[first]
