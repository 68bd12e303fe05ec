"""The critical path of a step: the chain of ops, messages and gaps that was as long as the step, summed by what it consists of.

From the step's last end the chain goes back to what that end waited for, and so on to the beginning. Whatever is not on it could have
taken longer without the step noticing; so what it consists of, and not how long ranks waited, says where time can be won.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pptoolkit.analysis.replay import Recipe, Replay
from pptoolkit.analysis.replay_nodes import Seconds
from pptoolkit.telemetry.events import Op

_MOST_STEPS = 16
_KINDS = {
    int(Op.FORWARD): "forward",
    int(Op.BACKWARD): "backward",
    int(Op.BACKWARD_INPUT): "backward",
    int(Op.BACKWARD_WEIGHT): "backward",
    int(Op.RECV): "link",
    int(Op.SEND): "link",
    int(Op.SEND_WAIT): "link",
    int(Op.REDUCE): "collective",
    int(Op.OPTIMIZER): "optimizer",
    int(Op.DATA): "data",
}


class PathPiece(NamedTuple):
    """One piece of the path; seconds from the step's beginning. ``kind``: forward, backward, link, collective, optimizer, data, host."""

    kind: str
    rank: int
    stage: int
    micro_batch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticalPath:
    """The critical path of a typical step, and what the paths of several steps consist of.

    Args:
        step: The step that ``pieces`` are of: the one whose time is the median.
        pieces: From its beginning to its end.
        seconds: Mean seconds a step on the path, by kind; they sum to the replayed step.
        compute_share: Part of the path's forward and backward that lies in each stage.
        steps: How many steps' paths were summed.
    """

    step: int
    pieces: tuple[PathPiece, ...]
    seconds: dict[str, float]
    compute_share: dict[int, float]
    steps: int

    def to_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "seconds": dict(self.seconds),
            "compute_share": {str(stage): share for stage, share in self.compute_share.items()},
            "steps": self.steps,
            "pieces": [piece._asdict() for piece in self.pieces],
        }


def find_critical_path(replay: Replay) -> CriticalPath:
    """Return the critical path of a run's steps."""
    inputs = replay.inputs(Recipe())
    ready, end = replay.graph.play(*inputs)
    order = np.argsort(replay.replayed_s, kind="stable")
    typical = int(order[len(order) // 2])
    lanes = sorted({typical, *np.linspace(0, replay.lanes - 1, min(_MOST_STEPS, replay.lanes)).astype(int).tolist()})
    walker = _Walker(replay, inputs, ready, end)
    seconds: dict[str, float] = {}
    stages: dict[int, float] = {}
    chosen: tuple[PathPiece, ...] = ()
    for lane in lanes:
        pieces = walker.walk(lane)
        if lane == typical:
            chosen = pieces
        for piece in pieces:
            length = piece.end_s - piece.start_s
            seconds[piece.kind] = seconds.get(piece.kind, 0.0) + length / len(lanes)
            if piece.kind in ("forward", "backward"):
                stages[piece.stage] = stages.get(piece.stage, 0.0) + length
    total = sum(stages.values())
    return CriticalPath(
        step=int(replay.nodes.steps[typical]),
        pieces=chosen,
        seconds=dict(sorted(seconds.items(), key=lambda item: -item[1])),
        compute_share={stage: length / total for stage, length in sorted(stages.items())} if total else {},
        steps=len(lanes),
    )


class _Walker:
    def __init__(self, replay: Replay, inputs: tuple[Seconds, ...], ready: Seconds, end: Seconds) -> None:
        self.replay, self.inputs, self.ready, self.end = replay, inputs, ready, end
        self.incoming: dict[int, list[int]] = {}
        for index, edge in enumerate(replay.graph.edges):
            self.incoming.setdefault(edge.target, []).append(index)

    def walk(self, lane: int) -> tuple[PathPiece, ...]:
        """Return the path of one step, from its beginning."""
        graph, (gap, own, weight) = self.replay.graph, self.inputs
        length = self.end[self.replay.end, lane] - self.ready[self.replay.begin, lane]
        node = int(self.replay.end[int(length.argmax())])
        pieces: list[PathPiece] = []
        at = float(self.end[node, lane])
        while node >= 0:
            own_end = float(self.ready[node, lane] + own[node, lane])
            edge = self._binding(node, lane, own_end, weight)
            if edge is None:
                at = self._add(pieces, self._kind(node), node, at, float(self.ready[node, lane]))
                at = self._add(pieces, "host", node, at, at - float(gap[node, lane]))
                node = int(graph.previous[node])
                continue
            source = graph.edges[edge]
            at = self._add(pieces, self._kind(node), node, at, at - float(weight[edge, lane]))
            if source.from_ready:
                at = self._add(pieces, "host", source.node, at, at - float(gap[source.node, lane]))
                node = int(graph.previous[source.node])
            else:
                node = source.node
        return tuple(reversed(pieces))

    def _binding(self, node: int, lane: int, own_end: float, weight: Seconds) -> int | None:
        """Return the edge that decided when a node ended, or None if it was the rank itself."""
        best, chosen = own_end if self.replay.graph.previous[node] >= 0 or node not in self.incoming else -np.inf, None
        for index in self.incoming.get(node, ()):
            edge = self.replay.graph.edges[index]
            base = self.ready[edge.node, lane] if edge.from_ready else self.end[edge.node, lane]
            if base + weight[index, lane] > best + 1e-12:
                best, chosen = float(base + weight[index, lane]), index
        return chosen

    def _add(self, pieces: list[PathPiece], kind: str, node: int, end_s: float, start_s: float) -> float:
        nodes = self.replay.nodes
        if end_s - start_s > 1e-9:
            known = node < nodes.count
            rank = int(nodes.rank[node]) if known else -1
            stage, micro_batch = (int(nodes.stage[node]), int(nodes.micro_batch[node])) if known else (-1, -1)
            pieces.append(PathPiece(kind, rank, stage, micro_batch, start_s, end_s))
        return start_s

    def _kind(self, node: int) -> str:
        return _KINDS.get(int(self.replay.nodes.op[node]), "host") if node < self.replay.nodes.count else "host"
