"""Replay a run's own steps, whole or without some of what made them slow.

Order and dependencies come from the events: on a rank a thing follows what had ended when it began; a compute op needs its message; both
ends of a rendezvous, and the members of a collective, need each other. What only overlaps (communication beside compute) orders nothing.
Times come from the events too, step by step: compute as it was, transfers from the moment in which both ends were there, and gaps as host
time. So waiting is computed, never taken over, and the replay of everything ends when the step ended; what it misses is its error.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.replay_nodes import Indices, Nodes, Seconds, collect_nodes
from pptoolkit.analysis.replay_order import Order, order_nodes
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.errors import ScheduleError
from pptoolkit.simulator.replay import ReplayGraph
from pptoolkit.telemetry.events import Op

PARTS = ("link", "data", "host", "step_end")
_OWN_PARTS = {int(Op.DATA): "data", int(Op.OPTIMIZER): "step_end"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What goes into a replay.

    Args:
        compute_s: Own time of each compute node, of shape (compute nodes, steps) or (compute nodes, 1); None: as measured.
        parts: Which of :data:`PARTS` cost what they did; the others are free.
    """

    compute_s: Seconds | None = None
    parts: frozenset[str] = frozenset(PARTS)


@dataclass(frozen=True, slots=True)
class Costs:
    """The arrays that a replay runs on; gaps and own times by part, of shape (nodes, steps), weights of shape (edges, steps)."""

    gap_s: dict[str, Seconds]
    own_s: dict[str, Seconds]
    weight_s: Seconds
    weight_part: Indices = field(repr=False)  # place in PARTS


class Replay:
    """The replay of a run's usable steps.

    Args:
        nodes: What every rank did.
        graph: Their order; its first nodes are ``nodes``, then come each rank's begin and end, then joins.
        order: What it was made from.
        costs: What it took.
    """

    def __init__(self, nodes: Nodes, graph: ReplayGraph, order: Order, costs: Costs) -> None:
        self.nodes, self.graph, self.order, self.costs = nodes, graph, order, costs
        self.begin, self.end = np.asarray(order.begin), np.asarray(order.end)
        self.compute = np.flatnonzero(np.isin(nodes.op, COMPUTE_CODES))

    @property
    def lanes(self) -> int:
        return len(self.nodes.steps)

    @cached_property
    def measured_s(self) -> Seconds:
        """Measured time of each step: the longest of its ranks'."""
        return np.asarray((self.nodes.finish_s - self.nodes.begin_s).max(axis=0))

    @cached_property
    def compute_s(self) -> Seconds:
        """Measured time of each compute node, of shape (compute nodes, steps)."""
        return self.nodes.duration_s[self.compute]

    @cached_property
    def replayed_s(self) -> Seconds:
        """Time of each step with everything in it."""
        return self.step_times(Recipe())

    @property
    def error_ratio(self) -> float:
        """Replayed over measured time of all steps, less 1."""
        return float(self.replayed_s.sum() / self.measured_s.sum() - 1)

    @cached_property
    def _first_waits(self) -> list[Indices]:
        """Of each rank, the receives before its first compute."""
        nodes, start, found = self.nodes, np.median(self.nodes.start_s, axis=1), []
        for rank in nodes.ranks:
            first = start[self.compute[nodes.rank[self.compute] == rank]].min(initial=np.inf)
            found.append(np.flatnonzero((nodes.rank == rank) & (nodes.op == int(Op.RECV)) & (start < first)))
        return found

    def step_times(self, recipe: Recipe) -> Seconds:
        """Return the time of each step under ``recipe``."""
        gap, own, weight = self.inputs(recipe)
        return self.periods(*self.graph.play(gap, own, weight), own)

    def periods(self, ready: Seconds, end: Seconds, own: Seconds) -> Seconds:
        """Return the time of each step of a replay that gave ``ready`` and ``end`` from the own times ``own``.

        That is how long a rank needs from one step to the next, for the slowest rank. Ranks that do not wait for each other
        between steps begin theirs early and wait for their first input; that wait is as long as there is time, and no part of it.
        """
        begin = ready[self.begin]
        for place, waits in enumerate(self._first_waits):
            begin[place] += (end[waits] - ready[waits] - own[waits]).clip(min=0.0).sum(axis=0)
        return np.asarray((end[self.end] - begin).max(axis=0))

    def play(self, recipe: Recipe) -> tuple[Seconds, Seconds]:
        """Return when each node of the graph was ready and when it ended, of shape (nodes, steps)."""
        gap, own, weight = self.inputs(recipe)
        return self.graph.play(gap, own, weight)

    def inputs(self, recipe: Recipe) -> tuple[Seconds, Seconds, Seconds]:
        """Return gaps, own times and edge weights under ``recipe``."""
        shape = (self.graph.nodes, self.lanes)
        gap, own = np.zeros(shape), np.zeros(shape)
        for part in recipe.parts:
            gap += self.costs.gap_s.get(part, 0.0)
            own += self.costs.own_s.get(part, 0.0)
        own[self.compute] = self.compute_s if recipe.compute_s is None else recipe.compute_s
        kept = np.asarray([part in recipe.parts for part in PARTS])
        return gap, own, self.costs.weight_s * kept[self.costs.weight_part][:, None]

    def typical_s(self, *, by_stage: bool, by_rank: bool = False) -> Seconds:
        """Return each compute node's typical time, of shape (compute nodes, 1).

        That is the median of its op in its stage (``by_rank``: on its rank), or, without ``by_stage``, the mean of the stages' medians.
        """
        nodes, found = self.nodes, np.zeros((len(self.compute), 1))
        for op in np.unique(nodes.op[self.compute]):
            mine = nodes.op[self.compute] == op
            medians: dict[tuple[int, int], float] = {}
            ranks = nodes.rank[self.compute] if by_rank else np.zeros_like(self.compute)
            keys = list(zip(nodes.stage[self.compute].tolist(), ranks.tolist(), strict=True))
            for key in sorted({keys[i] for i in np.flatnonzero(mine)}):
                rows = [i for i in np.flatnonzero(mine) if keys[i] == key]
                medians[key] = float(np.median(self.compute_s[rows]))
                found[rows] = medians[key]
            if not by_stage:
                found[mine] = np.mean(list(medians.values()))
        return found


def build_replay(steady: SteadySteps, *, blocking_links: bool = False) -> Replay | None:
    """Return the replay of the usable steps, or None where no two of them are made of the same things.

    Raises:
        ScheduleError: If the events contradict each other, so that a thing would wait for itself.
    """
    nodes = collect_nodes(steady)
    if nodes is None:
        return None
    try:
        order = order_nodes(nodes, blocking_links=blocking_links)
        graph = ReplayGraph(order.previous, order.edges)
    except ScheduleError:
        if not blocking_links:
            raise
        # Sends and receives that wait for each other would have stuck, and did not: some of the sends did not wait.
        order = order_nodes(nodes, blocking_links=False)
        graph = ReplayGraph(order.previous, order.edges)
    return Replay(nodes, graph, order, _costs(nodes, order, graph))


def _costs(nodes: Nodes, order: Order, graph: ReplayGraph) -> Costs:
    shape = (graph.nodes, len(nodes.steps))
    own = {part: np.zeros(shape) for part in PARTS}
    for node, part, seconds in order.own_s:
        own[part][node] = seconds
    for op, part in _OWN_PARTS.items():
        mine = np.flatnonzero(nodes.op == op)
        own[part][mine] = nodes.duration_s[mine]
    gaps = _gaps(nodes, order, shape)
    gap = {"host": gaps, "step_end": np.zeros(shape)}
    for moment in nodes.stalls:
        node = _node_after(nodes, order, moment.rank, moment.lane, moment.end_s)
        taken = min(moment.end_s - moment.start_s, float(gaps[node, moment.lane]))
        gap["host"][node, moment.lane] -= taken
        gap["step_end" if moment.kind == "checkpoint" else "host"][node, moment.lane] += taken
    weight = np.asarray(order.weight_s).reshape(len(order.weight_s), shape[1])
    return Costs(gap, own, weight, np.asarray([PARTS.index(part) if part in PARTS else 0 for part in order.parts], dtype=np.int64))


def _gaps(nodes: Nodes, order: Order, shape: tuple[int, int]) -> Seconds:
    """Return how long after what it follows each node began."""
    gap = np.zeros(shape)
    ended = np.zeros(shape)
    ended[: nodes.count] = nodes.end_s
    ended[order.begin] = nodes.begin_s
    gap[order.begin] = nodes.begin_s
    began = {**{n: nodes.start_s[n] for n in range(nodes.count)}, **{n: nodes.finish_s[place] for place, n in enumerate(order.end)}}
    for node, start in began.items():
        before = order.after[node]
        gap[node] = np.maximum(start - ended[list(before)].max(axis=0), 0.0)
    return gap


def _node_after(nodes: Nodes, order: Order, rank: int, lane: int, moment_s: float) -> int:
    mine = np.flatnonzero((nodes.rank == rank) & (nodes.start_s[:, lane] >= moment_s - 1e-6))
    if len(mine):
        return int(mine[nodes.start_s[mine, lane].argmin()])
    return order.end[int(np.searchsorted(nodes.ranks, rank))]
