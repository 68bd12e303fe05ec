"""Replay of what really happened: each rank's own sequence, with what it waited for, over many steps at once. Pure.

A node is one thing that a rank did. It is ready when the node before it on its rank has ended and a gap has passed; it ends

    end = max(ready + own, source + weight of each edge)

where an edge's source is another node's end (a message that was sent) or the moment in which another node was ready (both ends of a
rendezvous, all members of a collective). Times are arrays of shape (nodes, lanes) and a lane is one step, so that a run of 200 steps is
replayed as fast as one. What is taken away from gaps, own times and weights shows what it cost: the result is exact, because waiting is
never an input.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pptoolkit.errors import ScheduleError

Seconds = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Edge:
    """``target`` ends no sooner than its source plus the edge's weight; the source is the end of ``node``, or its being ready."""

    target: int
    node: int
    from_ready: bool = False


class ReplayGraph:
    """The order of things, without times.

    Args:
        previous: For each node the one before it on its rank, or -1.
        edges: What else a node waits for.

    Raises:
        ScheduleError: If nodes wait for each other in a circle.
    """

    def __init__(self, previous: Sequence[int], edges: Sequence[Edge]) -> None:
        self.previous = np.asarray(previous, dtype=np.int64)
        self.edges = tuple(edges)
        self.target = np.asarray([e.target for e in edges], dtype=np.int64)
        self.source = np.asarray([e.node for e in edges], dtype=np.int64)
        self.from_ready = np.asarray([e.from_ready for e in edges], dtype=bool)
        self._levels = self._plan_levels()

    @property
    def nodes(self) -> int:
        return len(self.previous)

    def play(self, gap_s: Seconds, own_s: Seconds, weight_s: Seconds) -> tuple[Seconds, Seconds]:
        """Return when each node was ready and when it ended, both of shape (nodes, lanes).

        Args:
            gap_s: Before each node, of shape (nodes, lanes); of a rank's first node: when it starts.
            own_s: Each node's own time, of shape (nodes, lanes).
            weight_s: Of each edge, of shape (edges, lanes).
        """
        # One row more: "before" a first node, and always 0.
        end = np.zeros((self.nodes + 1, gap_s.shape[1]))
        for nodes, edges, starts, targets in self._levels:
            ended = end[self.previous[nodes]] + gap_s[nodes] + own_s[nodes]
            if len(edges):
                source, ready = self.source[edges], self.from_ready[edges]
                base = np.where(ready[:, None], end[self.previous[source]] + gap_s[source], end[source])
                ended[targets] = np.maximum(ended[targets], np.maximum.reduceat(base + weight_s[edges], starts, axis=0))
            end[nodes] = ended
        return end[self.previous] + gap_s, end[:-1]

    def _plan_levels(self) -> list[tuple[Indices, Indices, Indices, Indices]]:
        """Return, level by level, nodes whose inputs are all of earlier levels; their edges, where each one's begin, and whose they are."""
        level = self._level_of_nodes()
        by_target: dict[int, list[int]] = {}
        for index, edge in enumerate(self.edges):
            by_target.setdefault(edge.target, []).append(index)
        order = np.argsort(level, kind="stable")
        levels = []
        for nodes in np.split(order, np.flatnonzero(np.diff(level[order])) + 1) if self.nodes else []:
            edges: list[int] = []
            starts, targets = [], []
            for place, node in enumerate(nodes.tolist()):
                if node in by_target:
                    starts.append(len(edges))
                    targets.append(place)
                    edges += by_target[node]
            as_indices = (np.asarray(values, dtype=np.int64) for values in (edges, starts, targets))
            levels.append((nodes, *as_indices))
        return levels  # type: ignore[return-value]

    def _level_of_nodes(self) -> Indices:
        count = self.nodes
        waits = [0] * count
        followers: list[list[int]] = [[] for _ in range(count)]
        needs = [(node, before) for node, before in enumerate(self.previous.tolist()) if before >= 0]
        # Being ready needs only the end of the node before.
        needs += [(e.target, int(self.previous[e.node]) if e.from_ready else e.node) for e in self.edges]
        for node, need in needs:
            if need >= 0:
                waits[node] += 1
                followers[need].append(node)
        level = np.zeros(count, dtype=np.int64)
        ready = [node for node in range(count) if not waits[node]]
        done = 0
        while ready:
            node = ready.pop()
            done += 1
            after = level[node] + 1
            for follower in followers[node]:
                level[follower] = max(level[follower], after)
                waits[follower] -= 1
                if not waits[follower]:
                    ready.append(follower)
        if done < count:
            stuck = next(node for node in range(count) if waits[node])
            raise ScheduleError(f"node {stuck} of the replay waits for itself; the events are out of order, so check the ranks' clocks")
        return level
