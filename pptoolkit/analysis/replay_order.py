"""The order of a replay: which node follows which, and which waits for which, seen from when things typically began and ended.

rank 0   F0 [send] F1 ..... [recv] B0        a node follows what had ended when it began
               |                ^            a receive ends no sooner than its message arrives
rank 1       [recv] F0 B0 [send]'            a rendezvous: send and receive wait for each other
"""

from dataclasses import dataclass

import numpy as np

from pptoolkit.analysis.bubbles import BACKWARD_CODES, COMPUTE_CODES
from pptoolkit.analysis.replay_nodes import Nodes, Seconds
from pptoolkit.simulator.replay import Edge
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.links import UNBLOCKED_NS, saw_arrival

_TOUCHING_S = 5e-5  # what ends this little after another began still came before it: clocks and rounding
_BROKEN = 0.02  # share of the steps that may contradict an order
_RECV, _SEND, _WAIT, _REDUCE = int(Op.RECV), int(Op.SEND), int(Op.SEND_WAIT), int(Op.REDUCE)
LINK, HOST, STEP_END, FREE = "link", "host", "step_end", "free"


@dataclass(frozen=True, slots=True)
class Order:
    """A graph in the making: :class:`~pptoolkit.simulator.replay.ReplayGraph` takes ``previous`` and ``edges``.

    Args:
        after: For each node of the graph, what it follows; with more than one, ``previous`` is a join of them.
        weight_s: Of each edge, of shape (steps,).
        parts: Of each edge: what its weight is counted as.
        begin: Node of each rank's begin; ``end`` of its end.
        own_s: Own time of communication nodes: (node, part, seconds of shape (steps,)).
    """

    previous: list[int]
    after: list[tuple[int, ...]]
    edges: list[Edge]
    weight_s: list[Seconds]
    parts: list[str]
    begin: list[int]
    end: list[int]
    own_s: list[tuple[int, str, Seconds]]


def order_nodes(nodes: Nodes, *, blocking_links: bool) -> Order:
    """Return the order of ``nodes``, one begin and one end a rank, and as many joins as it takes."""
    builder = _Builder(nodes)
    for place, rank in enumerate(nodes.ranks):
        builder.chain(place, np.flatnonzero(nodes.rank == rank))
    builder.links(blocking=blocking_links)
    builder.collectives()
    return builder.order


class _Builder:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        ranks = len(nodes.ranks)
        first = nodes.count
        self.start, self.finish = np.median(nodes.start_s, axis=1), np.median(nodes.end_s, axis=1)
        self.zero = np.zeros(len(nodes.steps))
        total = first + 2 * ranks
        begin, end = list(range(first, first + ranks)), list(range(first + ranks, total))
        self.order = Order([-1] * total, [()] * total, [], [], [], begin, end, [])
        self.cells = {
            (int(nodes.replica[i]), int(nodes.op[i]), int(nodes.stage[i]), int(nodes.micro_batch[i]), int(nodes.peer[i])): i
            for i in range(nodes.count)
        }

    # -- on a rank -----------------------------------------------------------------------------------------------------

    def chain(self, place: int, mine: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
        """Say what each node of one rank follows."""
        nodes, begin = self.nodes, self.order.begin[place]
        mine = mine[np.lexsort((self.finish[mine], self.start[mine]))]
        computes = [int(i) for i in mine if nodes.op[i] in COMPUTE_CODES]
        beside = self._beside_compute(mine, computes)
        open_ends: list[int] = [begin]  # ended, and nothing follows them yet
        earlier: list[int] = [begin]
        latest = begin
        for node in (int(i) for i in mine):
            before = [n for n in open_ends if self._ended(n, node)]
            if not before:
                before = [next((n for n in reversed(earlier) if self._ended(n, node)), begin)]
            if node in computes:
                before += [n for n in (latest, *self._input(node)) if n not in before]
                latest = node
            self._follow(node, before)
            if node not in beside:
                open_ends = [n for n in open_ends if n not in before]
                open_ends.append(node)
                earlier.append(node)
        self._follow(self.order.end[place], [*open_ends, *beside] or [begin])

    def _ended(self, first: int, second: int) -> bool:
        """Whether ``first`` ended before ``second`` began, in all steps but a few broken ones: what only happens to be so is no order."""
        nodes = self.nodes
        if first >= nodes.count:
            return True
        late = np.count_nonzero(nodes.end_s[first] - nodes.start_s[second] > _TOUCHING_S)
        return bool(late <= _BROKEN * len(nodes.steps))

    def _beside_compute(self, mine: "np.ndarray[tuple[int], np.dtype[np.int64]]", computes: list[int]) -> set[int]:
        """Return the communication of a rank that runs beside its compute, so that it orders nothing but what takes its message."""
        if not computes:
            return set()
        starts, ends = self.start[computes], self.finish[computes]
        beside = set()
        for node in (int(i) for i in mine):
            if self.nodes.op[node] in COMPUTE_CODES:
                continue
            shared = np.minimum(ends, self.finish[node]) - np.maximum(starts, self.start[node])
            if shared.max() > max(10 * _TOUCHING_S, 0.05 * (self.finish[node] - self.start[node])):
                other = computes[int(shared.argmax())]
                if not self._ended(other, node) and not self._ended(node, other):
                    beside.add(node)
        return beside

    def _input(self, node: int) -> list[int]:
        """Return the receive that a compute node takes its input from, if it has one."""
        nodes = self.nodes
        stage = int(nodes.stage[node])
        source = stage + 1 if nodes.op[node] in BACKWARD_CODES else stage - 1
        found = self.cells.get((int(nodes.replica[node]), _RECV, stage, int(nodes.micro_batch[node]), source))
        return [found] if found is not None else []

    def _follow(self, node: int, before: list[int]) -> None:
        order = self.order
        order.after[node] = tuple(before)
        if len(before) == 1:
            order.previous[node] = before[0]
            return
        join = self._extra()
        for n in before:
            self._edge(Edge(join, n), self.zero, FREE)
        order.previous[node] = join

    def _extra(self) -> int:
        self.order.previous.append(-1)
        self.order.after.append(())
        return len(self.order.previous) - 1

    def _edge(self, edge: Edge, weight_s: Seconds, part: str) -> None:
        self.order.edges.append(edge)
        self.order.weight_s.append(np.maximum(weight_s, 0.0))
        self.order.parts.append(part)

    # -- between ranks -------------------------------------------------------------------------------------------------

    def links(self, *, blocking: bool) -> None:
        """Tie sends to receives."""
        nodes = self.nodes
        for node in range(nodes.count):
            if nodes.op[node] not in (_RECV, _SEND, _WAIT):
                continue
            peer_op = _SEND if nodes.op[node] == _RECV else _RECV
            other = self.cells.get(
                (int(nodes.replica[node]), peer_op, int(nodes.peer[node]), int(nodes.micro_batch[node]), int(nodes.stage[node]))
            )
            if blocking and other is not None:
                together = nodes.end_s[node] - np.maximum(nodes.start_s[node], nodes.start_s[other])
                self._own(node, LINK, together)
                self._edge(Edge(node, other, from_ready=True), together, LINK)
            elif nodes.op[node] == _SEND or other is None:
                self._own(node, LINK, nodes.duration_s[node])
            elif nodes.op[node] == _RECV:
                self._eager_receive(node, other)
            else:
                self._send_wait(node, other)

    def _own(self, node: int, part: str, seconds: Seconds) -> None:
        self.order.own_s.append((node, part, np.maximum(seconds, 0.0)))

    def _eager_receive(self, node: int, send: int) -> None:
        nodes = self.nodes
        sent = nodes.end_s[send]
        posted_after = self._posted_after(node)
        if posted_after is not None:
            sent = np.maximum(sent, nodes.end_s[posted_after])
        travel = nodes.end_s[node] - sent
        blocked = saw_arrival(waited_ns=nodes.duration_s[node] * 1e9, took_ns=travel * 1e9)
        # What had arrived unseen took no longer than until it was asked for, and typically as long as the others.
        usual = float(np.median(travel[blocked])) if blocked.any() else 0.0
        travel = np.where(blocked, travel, np.minimum(travel, usual))
        self._own(node, LINK, np.where(blocked, 0.0, nodes.duration_s[node]))
        self._edge(Edge(node, send), travel, LINK)
        if posted_after is not None:
            self._edge(Edge(node, posted_after), travel, LINK)

    def _posted_after(self, wait: int) -> int | None:
        """Return the compute node of the same rank after which what it waits for was posted, if it was posted inside a step."""
        nodes = self.nodes
        if np.isnan(nodes.post_s[wait]).all():
            return None
        posted = float(np.nanmedian(nodes.post_s[wait]))
        mine = [
            int(i)
            for i in np.flatnonzero((nodes.rank == nodes.rank[wait]) & (self.finish <= posted + _TOUCHING_S))
            if nodes.op[i] in COMPUTE_CODES
        ]
        return max(mine, key=lambda i: float(self.finish[i]), default=None)

    def _send_wait(self, node: int, receive: int) -> None:
        nodes = self.nodes
        posted_after = self._posted_after(receive)
        blocked = nodes.duration_s[node] >= UNBLOCKED_NS / 1e9
        if posted_after is None or not blocked.any():
            self._own(node, LINK, nodes.duration_s[node])
            return
        base = np.maximum(nodes.start_s[node], nodes.end_s[posted_after])
        rest = np.where(blocked, nodes.end_s[node] - base, nodes.duration_s[node])
        self._own(node, LINK, np.minimum(rest, nodes.duration_s[node]))
        self._edge(Edge(node, posted_after), np.where(blocked, rest, 0.0), LINK)

    def collectives(self) -> None:
        """Tie the members of each collective to each other."""
        nodes = self.nodes
        groups: dict[tuple[int, ...], list[int]] = {}
        seen: dict[tuple[int, int, int], int] = {}
        reduces = np.flatnonzero(nodes.op == _REDUCE)
        for node in (int(i) for i in reduces[np.argsort(self.start[reduces], kind="stable")]):
            stage, peer, replica, rank = (int(column[node]) for column in (nodes.stage, nodes.peer, nodes.replica, nodes.rank))
            kind = (rank, stage, peer)
            number = seen[kind] = seen.get(kind, -1) + 1
            low, high = min(stage, peer), max(stage, peer)
            if stage < 0:
                group: tuple[int, ...] = (0, number)
            elif peer < 0:
                group = (1, rank, stage, number)
            elif stage == peer:
                group = (2, stage, number, int(nodes.micro_batch[node]))
            else:
                group = (3, low, high, replica, number)
            groups.setdefault(group, []).append(node)
        for members in groups.values():
            self._join(members)

    def _join(self, members: list[int]) -> None:
        nodes = self.nodes
        if len(members) == 1:
            self._own(members[0], STEP_END, nodes.duration_s[members[0]])
            return
        hub = self._extra()
        joined = {node: self._joined(node, hub) for node in members}
        last = np.max(list(joined.values()), axis=0)
        after = nodes.end_s[members] - last
        held = nodes.start_s[members] < last
        # Who came last waited for nobody: the collective took it no longer than it took the others after that.
        usual = float(np.median(after[held])) if held.any() else 0.0
        for row, node in enumerate(members):
            self._own(node, STEP_END, np.where(held[row], 0.0, nodes.duration_s[node]))
            self._edge(Edge(node, hub), np.where(held[row], after[row], np.minimum(after[row], usual)), STEP_END)

    def _joined(self, node: int, hub: int) -> Seconds:
        """Tie a collective's ``hub`` to the moment in which a rank joined it, and return that moment."""
        nodes = self.nodes
        posted_after = self._posted_after(node) if not np.isnan(nodes.post_s[node]).any() else None
        if posted_after is None:
            self._edge(Edge(hub, node, from_ready=True), self.zero, FREE)
            return np.asarray(nodes.start_s[node])
        posted = nodes.post_s[node]
        self._edge(Edge(hub, posted_after), posted - nodes.end_s[posted_after], HOST)
        return np.asarray(posted)
