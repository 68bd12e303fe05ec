"""The critical path through one measured step: the chain of ops, each of which began because the one before it had ended.

The chain is followed from the step's last end to its beginning. An op began when its rank was free and its input was there; what came later
of the two is the op before it on the path. A collective ends when its last rank has come, so the path goes on with that rank.

    rank 0   |F0 |F1 |            |B0 |B1 |
    rank 1       |F0 |B0 |F1 |B1 |            F0 of rank 0, then rank 1 without a pause, then B1 of rank 0
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

from pptoolkit.telemetry.events import Op

_FORWARD = (int(Op.FORWARD),)
_BACKWARD = (int(Op.BACKWARD), int(Op.BACKWARD_INPUT))
_REDUCE = int(Op.REDUCE)
_OWN = (*_FORWARD, *_BACKWARD, *(int(op) for op in (Op.BACKWARD_WEIGHT, Op.SEND, Op.OPTIMIZER, Op.DATA, Op.CHECKPOINT, Op.REDUCE)))
_SLACK_NS = 20_000  # of clocks, and of the host between two ops


class PathOp(NamedTuple):
    """One op on the path. A collective is given from when its last rank had come."""

    rank: int
    op: int
    stage: int
    micro_batch: int
    start_ns: int
    end_ns: int


def find_step_path(step: pd.DataFrame) -> tuple[PathOp, ...]:
    """Return the critical path of a step, from its beginning; empty where there are no ops.

    Args:
        step: The events of one step of one attempt, on one clock, with rank and replica.
    """
    rows = step[step["op"].isin(_OWN)].sort_values(["rank", "end_ns", "start_ns"], kind="stable", ignore_index=True)
    if rows.empty:
        return ()
    walk = _Walk(rows)
    path: list[PathOp] = []
    at: int | None = walk.last()
    while at is not None and len(path) < len(rows):
        piece, at = walk.follow(at)
        path.append(piece)
    return tuple(reversed(path))


class _Walk:
    def __init__(self, rows: pd.DataFrame) -> None:
        columns = {name: rows[name].to_numpy(dtype=np.int64) for name in ("rank", "replica", "op", "stage", "micro_batch")}
        self.start, self.end = (rows[name].to_numpy(dtype=np.int64) for name in ("start_ns", "end_ns"))
        self.rank, self.op, self.stage, self.micro_batch = (columns[name] for name in ("rank", "op", "stage", "micro_batch"))
        self.replica = columns["replica"]
        self.producer: dict[tuple[int, bool, int, int], int] = {}
        for i in np.flatnonzero(np.isin(self.op, (*_FORWARD, *_BACKWARD))).tolist():
            self.producer[self._key(i, int(self.stage[i]))] = i
        self.reduces = np.flatnonzero(self.op == _REDUCE)

    def _key(self, i: int, stage: int) -> tuple[int, bool, int, int]:
        return int(self.replica[i]), bool(self.op[i] == Op.FORWARD), stage, int(self.micro_batch[i])

    def last(self) -> int:
        return int(self.end.argmax())

    def follow(self, i: int) -> tuple[PathOp, int | None]:
        """Return an op as a piece of the path, and the op before it."""
        start = int(self.start[i])
        rank, before = int(self.rank[i]), self._previous(i)
        if self.op[i] == _REDUCE:
            latest = self._last_to_come(i)
            start = max(start, min(int(self.start[latest]), int(self.end[i])))
            before = self._previous(latest)
        else:
            source = self._source(i)
            if source is not None and (before is None or self.end[source] > self.end[before]):
                before = source
        piece = PathOp(rank, int(self.op[i]), int(self.stage[i]), int(self.micro_batch[i]), start, int(self.end[i]))
        return piece, before

    def _previous(self, i: int) -> int | None:
        """Return the op that the rank did before; one that lies inside this one, or around it, is none."""
        k = i - 1
        while k >= 0 and self.rank[k] == self.rank[i]:
            if self.end[k] <= self.start[i] + _SLACK_NS and self.start[k] < self.start[i]:
                return k
            k -= 1
        return None

    def _source(self, i: int) -> int | None:
        """Return the op whose output this one takes."""
        if self.op[i] in _FORWARD:
            stage = int(self.stage[i]) - 1
        elif self.op[i] in _BACKWARD:
            stage = int(self.stage[i]) + 1
        else:
            return None
        source = self.producer.get(self._key(i, stage))
        return source if source is not None and self.end[source] <= self.start[i] + _SLACK_NS else None

    def _last_to_come(self, i: int) -> int:
        """Return the collective of the rank that came last to the one that ``i`` is part of."""
        together = self.reduces[(self.start[self.reduces] < self.end[i]) & (self.end[self.reduces] > self.start[i])]
        return int(together[self.start[together].argmax()]) if len(together) else i
