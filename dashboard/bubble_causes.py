"""Why each bubble is there: the steps in view replayed with one cause more at a time, gap by gap.

The causes, their order and their costs are those of :mod:`pptoolkit.analysis.causes`, which sums them over a whole run; here they are
kept apart by gap. A gap lies before the k-th computation of its rank, and what a cause adds to it is how much longer it is in the replay
with that cause than in the one without:

    replay without jitter    |F0|F1|..|B0|          gap before B0: 2
    replay with jitter       |F0 |F1|....|B0|                      4, so jitter adds 2
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.causes import CAUSES
from pptoolkit.analysis.replay import Recipe, Replay, build_replay
from pptoolkit.analysis.replay_nodes import Indices, Seconds
from pptoolkit.analysis.steps import SteadySteps, steady_of
from pptoolkit.errors import ScheduleError

MOST_EVENTS = 20_000  # of a step: replaying it takes about half a second
MOST_KEPT = 64
_RECIPES: tuple[tuple[str, ...], ...] = ((), ("link",), ("link", "data"), ("link", "data", "host"), ("link", "data", "host", "step_end"))
_COLUMNS = ["rank", "start_ns", "end_ns", "cause", "share", *CAUSES]

Usual = Mapping[tuple[int, int], float]


@dataclass(slots=True)
class CauseFinder:
    """Finds the causes of the bubbles of single steps, and remembers them: a step that is over does not change. Sessions may share it.

    Args:
        usual_s: Median seconds of each (op, stage) over the steps behind the statistics; what is not in it is taken from the step itself.
    """

    usual_s: Usual = field(default_factory=dict)
    _kept: dict[tuple[int, int], pd.DataFrame | None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of_step(self, timeline: pd.DataFrame, step: pd.DataFrame) -> pd.DataFrame | None:
        """Return the gaps of one step, or None where it cannot be replayed or is not complete yet.

        Args:
            timeline: Events of at least this step.
            step: Its row of the steps, with attempt, step, start_ns, end_ns, step_time_s and complete.

        Returns:
            Columns rank, start_ns, end_ns, cause (a place in ``CAUSES``, of the largest part), share (of the parts that add to the gap),
            and the seconds of each cause, which sum to the gap and may be negative.
        """
        key = (int(step["attempt"].iloc[0]), int(step["step"].iloc[0]))
        if not bool(step["complete"].iloc[0]):
            return None
        with self._lock:
            if key not in self._kept:
                while len(self._kept) >= MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = _gaps_of_step(timeline, step, self.usual_s)
            return self._kept[key]


def usual_seconds(steady: SteadySteps) -> dict[tuple[int, int], float]:
    """Return the median seconds of each compute op in each stage."""
    rows = steady.events[steady.events["op"].isin(COMPUTE_CODES)]
    seconds = (rows["end_ns"] - rows["start_ns"]) / 1e9
    medians = seconds.groupby([rows["op"], rows["stage"]]).median().rename("seconds").reset_index()
    return {(int(op), int(stage)): float(s) for op, stage, s in zip(medians["op"], medians["stage"], medians["seconds"], strict=True)}


def _gaps_of_step(timeline: pd.DataFrame, step: pd.DataFrame, usual_s: Usual) -> pd.DataFrame | None:
    attempt, number = int(step["attempt"].iloc[0]), int(step["step"].iloc[0])
    events = timeline[(timeline["step"] == number) & (timeline["attempt"] == attempt)]
    if len(events) > MOST_EVENTS:
        return None
    try:
        replay = build_replay(steady_of(events, step, attempt, {}))
    except ScheduleError:
        return None
    return split_gaps(replay, usual_s, origin_ns=int(step["start_ns"].iloc[0])) if replay is not None else None


def split_gaps(replay: Replay, usual_s: Usual, *, origin_ns: int) -> pd.DataFrame:
    """Return the gaps of a replay's first step by cause, with the columns of :meth:`CauseFinder.of_step`."""
    typical = _typical(replay, usual_s)
    mean = typical.copy()
    ops = replay.nodes.op[replay.compute]
    for op in np.unique(ops):
        # Every stage counts once, however many micro-batches it computes.
        stages = {int(s): float(typical[(ops == op) & (replay.nodes.stage[replay.compute] == s)].mean()) for s in _stages(replay, op)}
        mean[ops == op] = np.mean(list(stages.values()))
    levels = [_idle(replay, mean, ()), _idle(replay, typical, ()), *(_idle(replay, None, parts) for parts in _RECIPES)]
    order, first = _in_order(replay)
    begins, ends = _measured(replay, order, first)
    parts = np.diff(np.stack([np.zeros(len(begins)), *levels, ends - begins]), axis=0)
    positive = np.clip(parts, 0.0, None)
    share = positive.max(axis=0) / np.maximum(positive.sum(axis=0), 1e-12)
    ranks = np.repeat(replay.nodes.ranks, np.diff(first) + 1)
    frame = {
        "rank": ranks,
        "start_ns": origin_ns + np.round(begins * 1e9).astype(np.int64),
        "end_ns": origin_ns + np.round(ends * 1e9).astype(np.int64),
        "cause": parts.argmax(axis=0),
        "share": share,
        **dict(zip(CAUSES, parts, strict=True)),
    }
    gaps = pd.DataFrame(frame)[_COLUMNS]
    return gaps[gaps["end_ns"] > gaps["start_ns"]].reset_index(drop=True)


def _stages(replay: Replay, op: int) -> Indices:
    nodes = replay.nodes
    return np.unique(nodes.stage[replay.compute][nodes.op[replay.compute] == op])


def _typical(replay: Replay, usual_s: Usual) -> Seconds:
    """Return each compute node's usual time, of shape (compute nodes, 1)."""
    found = replay.typical_s(by_stage=True).copy()
    nodes = replay.nodes
    for i, key in enumerate(zip(nodes.op[replay.compute].tolist(), nodes.stage[replay.compute].tolist(), strict=True)):
        found[i] = usual_s.get(key, float(found[i, 0]))
    return found


def _in_order(replay: Replay) -> tuple[Indices, Indices]:
    """Return the compute nodes rank by rank in the order of time, and where each rank begins among them (and the last one ends)."""
    nodes = replay.nodes
    rank = nodes.rank[replay.compute]
    order = replay.compute[np.lexsort((nodes.start_s[replay.compute, 0], rank))]
    first = np.searchsorted(nodes.rank[order], nodes.ranks)
    return order, np.append(first, len(order)).astype(np.int64)


def _idle(replay: Replay, compute_s: Seconds | None, parts: tuple[str, ...]) -> Seconds:
    """Return how long each gap is in a replay of these costs."""
    recipe = Recipe(compute_s=compute_s, parts=frozenset(parts))
    ready, end = replay.play(recipe)
    own = np.zeros(len(end))
    own[replay.compute] = (replay.compute_s if compute_s is None else compute_s)[:, 0]
    order, first = _in_order(replay)
    step_s = float((end[replay.end, 0] - ready[replay.begin, 0]).max())
    begin = ready[replay.begin, 0]
    return _between(end[order, 0] - own[order], end[order, 0], first, begin, begin + step_s)


def _measured(replay: Replay, order: Indices, first: Indices) -> tuple[Seconds, Seconds]:
    """Return when each gap began and ended, in seconds of the step."""
    nodes = replay.nodes
    starts, ends = nodes.start_s[order, 0], nodes.end_s[order, 0]
    begin, finish = nodes.begin_s[:, 0], nodes.finish_s[:, 0]
    return np.insert(ends, first[:-1], begin), np.insert(starts, first[1:], finish)


def _between(starts: Seconds, ends: Seconds, first: Indices, begin: Seconds, finish: Seconds) -> Seconds:
    """Return the lengths of the gaps before, between and after the ops of every rank; a rank has one gap more than ops."""
    return np.insert(starts, first[1:], finish) - np.insert(ends, first[:-1], begin)
