"""Stalls: single moments in which a rank stood still for much longer than its work takes; and jitter, which is all of its ops varying.

A stall is one op, or one gap between two ops, that is far outside of what the same op or gap takes in the other steps. A pause of the
garbage collector, of the operating system or of a file system looks like this. What was recorded as a checkpoint is none.
"""

from dataclasses import dataclass

import numpy as np

from pptoolkit.analysis.replay import Replay
from pptoolkit.analysis.replay_nodes import Seconds
from pptoolkit.telemetry.events import Op

_SIGMAS = 8.0
_OF_TYPICAL = 1.0  # longer than usual by as much as it usually takes
_OF_STEP = 0.05  # and by this share of a step


@dataclass(frozen=True, slots=True)
class Stall:
    """One moment: which node of the replay, in which step, and how much longer it took than usual."""

    kind: str  # pause or data
    rank: int
    stage: int
    step: int
    excess_s: float
    node: int
    lane: int
    in_op: bool  # inside a compute op, not before it
    in_node: bool = False  # inside an op of any kind, not in the gap before it


def find_stalls(replay: Replay) -> list[Stall]:
    """Return the stalls of all ranks, by rank and step."""
    nodes, step_s = replay.nodes, float(np.median(replay.measured_s))
    stalls = [
        Stall(m.kind, m.rank, -1, int(nodes.steps[m.lane]), m.end_s - m.start_s, -1, m.lane, in_op=False)
        for m in nodes.stalls
        if m.kind == "pause"
    ]
    # What was recorded as a checkpoint or a pause explains the gap, or the optimizer, that it lies in.
    explained = {(m.rank, m.lane) for m in nodes.stalls}
    every = np.arange(replay.graph.nodes)
    sources = [(replay.compute_s, "pause", True, replay.compute), (replay.costs.gap_s["host"], "pause", False, every)]
    for op, kind in ((Op.DATA, "data"), (Op.OPTIMIZER, "pause")):
        mine = np.flatnonzero(nodes.op == int(op))
        sources.append((nodes.duration_s[mine], kind, False, mine))
    for values, kind, in_op, chosen in sources:
        usual = np.median(values, axis=1, keepdims=True)
        far = values - usual > np.maximum(_OF_STEP * step_s, np.maximum(_OF_TYPICAL * usual, _SIGMAS * _sigma(values)))
        for row, lane in np.argwhere(far):
            node = int(chosen[row])
            rank, stage = _owner(replay, node)
            if rank >= 0 and (in_op or (rank, int(lane)) not in explained):
                excess = float(values[row, lane] - usual[row, 0])
                stalls.append(Stall(kind, rank, stage, int(nodes.steps[lane]), excess, node, int(lane), in_op, len(chosen) < len(every)))
    return sorted(stalls, key=lambda stall: (stall.rank, stall.step, stall.node))


def without_stalls(replay: Replay, stalls: list[Stall]) -> Seconds:
    """Return the compute times with each stall inside an op replaced by what the op usually takes."""
    calm = replay.compute_s.copy()
    place = {int(node): row for row, node in enumerate(replay.compute)}
    for stall in stalls:
        if stall.in_op:
            row = place[stall.node]
            calm[row, stall.lane] = np.median(replay.compute_s[row])
    return calm


def micro_batch_share(replay: Replay, compute_s: Seconds) -> float:
    """Return the share of the ops' variance that a micro-batch brings along to every stage and pass, in [0, 1].

    Noise hits one op; a micro-batch with more work (longer sequences) is slow in all its ops. The share is the mean correlation of
    the relative deviations of the ops of the same micro-batch and step.
    """
    nodes, rows = replay.nodes, replay.compute
    relative = compute_s / np.median(compute_s, axis=1, keepdims=True) - 1.0
    spread = relative.std(axis=1)
    groups: dict[tuple[int, int], list[int]] = {}
    for row, node in enumerate(rows):
        if spread[row] > 0:
            groups.setdefault((int(nodes.replica[node]), int(nodes.micro_batch[node])), []).append(row)
    shares = []
    for members in groups.values():
        if len(members) > 2 and relative.shape[1] > 4:
            matrix = np.corrcoef(relative[members])
            shares.append((matrix.sum() - len(members)) / (len(members) * (len(members) - 1)))
    return max(0.0, float(np.mean(shares))) if shares else 0.0


def _sigma(values: Seconds) -> Seconds:
    low, high = np.percentile(values, [25, 75], axis=1, keepdims=True)
    return np.asarray((high - low) / 1.349)


def _owner(replay: Replay, node: int) -> tuple[int, int]:
    """Return the rank and stage of a node; (-1, -1) for joins and for the ends of steps, whose gaps are not the rank's own."""
    nodes = replay.nodes
    return (int(nodes.rank[node]), int(nodes.stage[node])) if node < nodes.count else (-1, -1)
