"""The bubble by cause: what a step would take with fewer of its causes, from the ideal step to the measured one.

The run's own steps are replayed with one cause more at a time, in this order:

    schedule    equal stages, free links, no jitter: what the order of the ops itself leaves idle
    imbalance   each stage's own typical times
    jitter      each op's own time: noise, pauses and stragglers
    link        hand-over and transfer of messages
    data        waiting for the loader
    host        schedule, Python and whatever else lies between the ops
    step_end    collectives, optimizer and checkpoints
    unexplained what the replay of everything misses

Each part is what its cause adds to the time in which a rank does not compute, so that they sum to the measured bubble. The order
counts: what two causes only have together falls to the later one. A part may be negative for the rank that computes most: imbalance
fills its bubble.
"""

from dataclasses import dataclass

import numpy as np

from pptoolkit.analysis.replay import Recipe, Replay
from pptoolkit.analysis.replay_nodes import Seconds

CAUSES = ("schedule", "imbalance", "jitter", "link", "data", "host", "step_end", "unexplained")
_WITH = {"link": ("link",), "data": ("link", "data"), "host": ("link", "data", "host"), "step_end": ("link", "data", "host", "step_end")}


@dataclass(frozen=True, slots=True, kw_only=True)
class BubbleCauses:
    """Mean seconds a step, over the replayed steps.

    Args:
        step_time_s: Measured.
        compute_s: Of a rank, the mean of all: a step without any bubble.
        parts: Cause to seconds, the mean over the ranks; with ``compute_s`` they sum to ``step_time_s``.
        per_rank: Rank to the same, of that rank alone; with its own compute they sum to ``step_time_s``.
        compute_per_rank: Rank to its compute.
        replay_error_ratio: Replayed over measured time, less 1.
        steps: Replayed steps.
    """

    step_time_s: float
    compute_s: float
    parts: dict[str, float]
    per_rank: dict[int, dict[str, float]]
    compute_per_rank: dict[int, float]
    replay_error_ratio: float
    steps: int

    @property
    def bubble_s(self) -> float:
        return self.step_time_s - self.compute_s

    @property
    def ratios(self) -> dict[str, float]:
        """Each part over the step time: they sum to the bubble ratio."""
        return {cause: seconds / self.step_time_s for cause, seconds in self.parts.items()}

    def waterfall(self) -> tuple[tuple[str, float, float], ...]:
        """Return (name, from, to) in seconds: the compute, then cause by cause up to the measured step."""
        bars, at = [("compute", 0.0, self.compute_s)], self.compute_s
        for cause, seconds in self.parts.items():
            bars.append((cause, at, at + seconds))
            at += seconds
        return tuple(bars)

    def to_dict(self) -> dict[str, object]:
        return {
            "step_time_s": self.step_time_s,
            "compute_s": self.compute_s,
            "parts_s": dict(self.parts),
            "ratios": self.ratios,
            "per_rank": {str(rank): {"compute_s": self.compute_per_rank[rank], "parts_s": parts} for rank, parts in self.per_rank.items()},
            "waterfall": [{"name": name, "from_s": low, "to_s": high} for name, low, high in self.waterfall()],
            "replay_error_ratio": self.replay_error_ratio,
            "steps": self.steps,
        }


def split_bubble(replay: Replay) -> BubbleCauses:
    """Return the bubble of a run's steps by cause."""
    ranks = replay.nodes.ranks
    levels = [
        _level(replay, replay.typical_s(by_stage=False), ()),
        _level(replay, replay.typical_s(by_stage=True), ()),
        _level(replay, None, ()),
        *(_level(replay, None, parts) for parts in _WITH.values()),
    ]
    step_s = float(replay.measured_s.mean())
    compute = _rank_compute(replay, replay.compute_s)
    idle = [np.zeros(len(ranks)), *levels, step_s - compute]
    parts = np.diff(np.stack(idle), axis=0)
    return BubbleCauses(
        step_time_s=step_s,
        compute_s=float(compute.mean()),
        parts={cause: float(part.mean()) for cause, part in zip(CAUSES, parts, strict=True)},
        per_rank={int(rank): dict(zip(CAUSES, map(float, parts[:, i]), strict=True)) for i, rank in enumerate(ranks)},
        compute_per_rank={int(rank): float(compute[i]) for i, rank in enumerate(ranks)},
        replay_error_ratio=replay.error_ratio,
        steps=replay.lanes,
    )


def _level(replay: Replay, compute_s: Seconds | None, parts: tuple[str, ...]) -> Seconds:
    """Return each rank's mean idle seconds in a replay of these costs."""
    step_s = replay.step_times(Recipe(compute_s=compute_s, parts=frozenset(parts))).mean()
    return np.asarray(step_s - _rank_compute(replay, replay.compute_s if compute_s is None else compute_s))


def _rank_compute(replay: Replay, compute_s: Seconds) -> Seconds:
    ranks = np.searchsorted(replay.nodes.ranks, replay.nodes.rank[replay.compute])
    seconds = np.bincount(ranks, weights=compute_s.mean(axis=1), minlength=len(replay.nodes.ranks))
    return np.asarray(seconds, dtype=np.float64)
