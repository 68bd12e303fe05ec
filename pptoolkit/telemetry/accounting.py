"""Accounting: where the wall time of a step went, per rank, in disjoint parts that sum to it exactly.

    STEP      |-----------------------------------------------------|  wall time
    SCHEDULE         |-------------------------------|
    leaf ops     DDD FFFF RRR FFFF SS BBBBBBB RR BBBB  CCC OOOO
    counted as u ddd hfff rrr fff h ss bbbbbb rr bbbb hu ccc oooo u    h = host, u = unattributed

Times are whole nanoseconds all the way, so nothing is lost to rounding.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pptoolkit.telemetry.events import COMPUTE_OPS, Op

Times = npt.NDArray[np.int64]


class State(StrEnum):
    """The parts of a step's wall time."""

    COMPUTE = "compute"
    RECV_WAIT = "recv_wait"
    SEND_WAIT = "send_wait"
    COLLECTIVE = "collective"
    OPTIMIZER = "optimizer"
    DATA = "data"
    CHECKPOINT = "checkpoint"
    HOST = "host"  # inside the schedule, in no op: Python and the schedule's own bookkeeping
    UNATTRIBUTED = "unattributed"  # inside the step, in nothing that was timed; shown, never spread over the others


LEAF_STATES: dict[Op, State] = {
    **dict.fromkeys(COMPUTE_OPS, State.COMPUTE),
    Op.RECV: State.RECV_WAIT,
    Op.SEND: State.SEND_WAIT,
    Op.SEND_WAIT: State.SEND_WAIT,
    Op.REDUCE: State.COLLECTIVE,
    Op.OPTIMIZER: State.OPTIMIZER,
    Op.DATA: State.DATA,
    Op.CHECKPOINT: State.CHECKPOINT,
}
STATES: tuple[State, ...] = tuple(State)
STATE_COLUMNS: tuple[str, ...] = tuple(f"{state}_ns" for state in STATES)

_NO_STATE = _NO_STEP = -1
_STATE_OF_OP = np.full(256, _NO_STATE, dtype=np.int64)
for _op, _state in LEAF_STATES.items():
    _STATE_OF_OP[int(_op)] = STATES.index(_state)


@dataclass(frozen=True, slots=True)
class StepSplit:
    """Accounting of some steps of one rank, in the order in which they ended.

    Args:
        start_ns: Start of each step.
        end_ns: End of each step; not before its start.
        parts_ns: Nanoseconds of shape (steps, states), states as in ``STATES``; they sum to each step's wall time.
    """

    start_ns: Times
    end_ns: Times
    parts_ns: Times


def split_ended_steps(rows: Times) -> StepSplit:
    """Split the steps that end in ``rows``.

    Args:
        rows: Events of one rank as recorded, columns as in the schema: those of a step stand before its STEP event and after
            the one before.
    """
    op, start, end = rows[:, 3], rows[:, 5], rows[:, 6]
    ends = np.flatnonzero(op == int(Op.STEP))
    step_start, step_end = start[ends], np.maximum(start[ends], end[ends])
    closing = np.searchsorted(ends, np.arange(len(rows)))
    inside = closing < len(ends)
    # What was recorded after a step's end still bears its number, but is no part of the next one.
    inside[inside] = rows[inside, 0] == rows[ends[closing[inside]], 0]
    return StepSplit(step_start, step_end, _split(op, start, end, np.where(inside, closing, _NO_STEP), step_start, step_end))


def split_steps(events: pa.Table | pd.DataFrame) -> pd.DataFrame:
    """Split every step of every rank that has its STEP event.

    Args:
        events: Columns step, rank, op, start_ns, end_ns, and attempt if there was more than one.

    Returns:
        One row per (rank, attempt, step), in that order: rank, attempt, step, start_ns, end_ns, wall_ns and one column per
        state, e.g. ``compute_ns``; the state columns sum to wall_ns exactly.
    """
    op, step, rank, start, end = (_column(events, name) for name in ("op", "step", "rank", "start_ns", "end_ns"))
    attempt = _column(events, "attempt") if "attempt" in _names(events) else np.zeros(len(op), dtype=np.int64)
    is_step = np.flatnonzero(op == int(Op.STEP))
    keys = np.stack([rank, attempt, step], axis=1) if len(op) else np.empty((0, 3), dtype=np.int64)
    # The last STEP of a key wins: a step that was begun anew is the one that counted.
    step_keys, newest = np.unique(keys[is_step][::-1], axis=0, return_index=True)
    chosen = is_step[::-1][newest]
    starts, ends = start[chosen], np.maximum(start[chosen], end[chosen])
    parts = _split(op, start, end, _find_rows(step_keys, keys), starts, ends)
    frame = pd.DataFrame(step_keys, columns=["rank", "attempt", "step"])
    frame["start_ns"], frame["end_ns"], frame["wall_ns"] = starts, ends, ends - starts
    for i, name in enumerate(STATE_COLUMNS):
        frame[name] = parts[:, i]
    return frame


def _split(op: Times, start: Times, end: Times, step: Times, step_start: Times, step_end: Times) -> Times:
    """Return nanoseconds of shape (steps, states); ``step`` is each event's row there, -1 for none."""
    steps = len(step_start)
    parts = np.zeros((steps, len(STATES)), dtype=np.int64)
    if not steps:
        return parts
    wall = step_end - step_start
    # All steps are laid end to end on one axis, so that one sweep serves them all and none reaches into its neighbour.
    origin = np.concatenate([[0], np.cumsum(wall)[:-1]])
    state = np.where((op >= 0) & (op < 256), _STATE_OF_OP[op & 255], _NO_STATE)
    leaf_start, leaf_end, leaf_step, leaf_state = _disjoint(
        *_place(state != _NO_STATE, start, end, step, step_start, step_end, origin), state
    )
    np.add.at(parts, (leaf_step, leaf_state), leaf_end - leaf_start)
    schedule_start, schedule_end, schedule_step, _ = _disjoint(
        *_place(op == int(Op.SCHEDULE), start, end, step, step_start, step_end, origin), state
    )
    host = np.zeros(steps, dtype=np.int64)
    np.add.at(host, schedule_step, schedule_end - schedule_start)
    if len(schedule_start):
        inside = _covered(schedule_start, schedule_end, leaf_end) - _covered(schedule_start, schedule_end, leaf_start)
        np.subtract.at(host, leaf_step, inside)
    parts[:, STATES.index(State.HOST)] = host
    parts[:, STATES.index(State.UNATTRIBUTED)] = wall - parts.sum(axis=1)
    return parts


def _place(
    wanted: npt.NDArray[np.bool_], start: Times, end: Times, step: Times, step_start: Times, step_end: Times, origin: Times
) -> tuple[Times, Times, Times, Times]:
    """Return start and end on the common axis, clipped to the step, with step and index, of the wanted events in a step."""
    index = np.flatnonzero(wanted & (step >= 0))
    row = step[index]
    low = np.clip(start[index], step_start[row], step_end[row]) - step_start[row] + origin[row]
    high = np.clip(end[index], step_start[row], step_end[row]) - step_start[row] + origin[row]
    return low, high, row, index


def _disjoint(start: Times, end: Times, step: Times, index: Times, state: Times) -> tuple[Times, Times, Times, Times]:
    """Return the intervals in order of start, each cut to what no earlier one covers; what lies inside another is gone."""
    order = np.lexsort((-end, start))
    start, end, step = start[order], end[order], step[order]
    covered_to = np.concatenate([[0], np.maximum.accumulate(end)[:-1]]) if len(end) else end
    start = np.maximum(start, covered_to)
    kept = end > start
    return start[kept], end[kept], step[kept], state[index[order]][kept]


def _covered(starts: Times, ends: Times, at: Times) -> Times:
    """Return how much of the sorted, disjoint intervals lies before each time ``at``."""
    before = np.concatenate([[0], np.cumsum(ends - starts)])
    i = np.searchsorted(starts, at, side="right")
    last = np.maximum(i - 1, 0)
    return np.where(i == 0, 0, before[last] + np.minimum(at, ends[last]) - starts[last])


def _find_rows(unique_keys: Times, keys: Times) -> Times:
    """Return the row of each key in the sorted ``unique_keys``, or -1."""
    if not len(unique_keys) or not len(keys):
        return np.full(len(keys), -1, dtype=np.int64)
    # Columns are folded into one number in turn, each by its place among the known values, so nothing can overflow.
    known, found = np.zeros(len(unique_keys), dtype=np.int64), np.zeros(len(keys), dtype=np.int64)
    missing = np.zeros(len(keys), dtype=bool)
    for column in range(keys.shape[1]):
        values = np.unique(unique_keys[:, column])
        place = np.minimum(np.searchsorted(values, keys[:, column]), len(values) - 1)
        missing |= values[place] != keys[:, column]
        known = known * len(values) + np.searchsorted(values, unique_keys[:, column])
        found = found * len(values) + place
    row = np.minimum(np.searchsorted(known, found), len(known) - 1)
    return np.where(missing | (known[row] != found), -1, row)


def _names(events: pa.Table | pd.DataFrame) -> list[str]:
    return list(events.column_names) if isinstance(events, pa.Table) else list(events.columns)


def _column(events: pa.Table | pd.DataFrame, name: str) -> Times:
    column: Any = events[name]
    return np.asarray(column.to_numpy(), dtype=np.int64)
