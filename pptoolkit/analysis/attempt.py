"""Where a whole attempt's wall time went: parts that sum to it exactly, per rank.

process starts                                                  last event ends
|-- start-up --|== step ==|==|==|- evaluation -|==|==|- checkpoint -|==|==|
                          between: what lies in none of them
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.accounting import RankAccount
from pptoolkit.telemetry.events import Op

# An evaluation inside a step is the step's; what is named first gets the time.
_PARTS = {"steps": Op.STEP, "evaluation": Op.EVAL, "checkpoint": Op.CHECKPOINT, "startup": Op.STARTUP}


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptAccount:
    """One rank's latest attempt.

    Args:
        wall_s: From the start of the process to the end of its last event.
        parts: Seconds of startup, steps, evaluation, checkpoint and between; they sum to ``wall_s``.
        unattributed_s: Part of the steps that nothing timed, by the share that the usable steps have of it.
    """

    rank: int
    attempt: int
    wall_s: float
    parts: dict[str, float]
    unattributed_s: float

    @property
    def unattributed_ratio(self) -> float:
        return self.unattributed_s / self.wall_s if self.wall_s > 0 else 0.0

    def to_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "attempt": self.attempt,
            "wall_s": self.wall_s,
            "parts": dict(self.parts),
            "unattributed_s": self.unattributed_s,
            "unattributed_ratio": self.unattributed_ratio,
        }


def account_attempt(events: pa.Table, scalars: pd.DataFrame, accounts: tuple[RankAccount, ...]) -> tuple[AttemptAccount, ...]:
    """Return the account of each rank's latest attempt, by rank; ranks without a step are left out.

    Args:
        events: All events, on the ranks' own clocks.
        scalars: One row per rank and step; they know also the steps whose events were not kept.
        accounts: Mean accounting of the usable steps.
    """
    wanted = pa.array([int(op) for op in _PARTS.values()], pa.uint8())
    rows = events.filter(pc.is_in(events["op"], wanted)).select(["op", "rank", "attempt", "start_ns", "end_ns"]).to_pandas()
    share = {rank.rank: rank.states["unattributed"] / rank.wall_s for rank in accounts if rank.wall_s > 0}
    found = []
    for rank in sorted(int(r) for r in rows.loc[rows["op"] == int(Op.STEP), "rank"].unique()):
        mine = rows[rows["rank"] == rank]
        attempt = int(mine["attempt"].max())
        mine = mine[mine["attempt"] == attempt]
        told = scalars[(scalars["rank"] == rank) & (scalars["attempt"] == attempt)]
        found.append(_account(rank, attempt, mine, float(told["step_time_s"].sum()), share.get(rank, 0.0)))
    return tuple(found)


def _account(rank: int, attempt: int, rows: pd.DataFrame, told_steps_s: float, unattributed_share: float) -> AttemptAccount:
    wall = int(rows["end_ns"].max() - rows["start_ns"].min())
    covered: list[tuple[int, int]] = []
    parts = {}
    for name, op in _PARTS.items():
        before = _length(covered)
        chosen = rows[rows["op"] == int(op)]
        covered = _union([*covered, *zip(chosen["start_ns"].tolist(), chosen["end_ns"].tolist(), strict=True)])
        parts[name] = _length(covered) - before
    between = wall - sum(parts.values())
    # Of steps whose events are not on disk the scalars still know the duration: it lies in what looks like nothing.
    missing = int(np.clip(round(told_steps_s * 1e9) - parts["steps"], 0, between))
    parts["steps"] += missing
    seconds = {name: ns / 1e9 for name, ns in {**parts, "between": between - missing}.items()}
    order = ("startup", "steps", "evaluation", "checkpoint", "between")
    return AttemptAccount(
        rank=rank,
        attempt=attempt,
        wall_s=wall / 1e9,
        parts={name: seconds[name] for name in order},
        unattributed_s=unattributed_share * seconds["steps"],
    )


def _union(intervals: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _length(intervals: list[tuple[int, int]]) -> int:
    return sum(end - start for start, end in intervals)
