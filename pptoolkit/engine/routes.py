"""Over which process group a tensor reaches another rank of the pipeline, decided once for each pair of ranks.

Gloo matches messages by peer and order, and any number of them may be under way both ways: one group serves all. NCCL runs what
is given to a communicator one after the other, and a send may last until its receive runs. On one communicator for both ways
two ranks would have to issue everything in one common order, which a pipeline schedule does not:

    rank 0   ... send F1   recv B0 ...          rank 1   ... send B0   recv F1 ...        each waits for the other

So each direction between two ranks has a communicator of its own. Within a direction the receives are posted in the order of the
sends (:mod:`pptoolkit.schedule.lower`), so what is first in line on one side is first on the other, and a schedule that runs on
Gloo cannot wait in a circle here either.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.process_group import TIMEOUT

Direction = tuple[int, int]  # global ranks: from, to
_LINES: WeakKeyDictionary[Any, dict[Direction, Any]] = WeakKeyDictionary()  # by process group, as the groups end with it


class Route(NamedTuple):
    """A process group, and the other rank's place in it."""

    group: dist.ProcessGroup
    peer: int


class Routes(Protocol):
    """How this rank reaches the others of its pipeline; ranks are those in the pipeline."""

    def sending_to(self, peer: int) -> Route:
        """Return the way to ``peer``."""

    def receiving_from(self, peer: int) -> Route:
        """Return the way from ``peer``."""


class SharedRoutes:
    """One group for all ranks and both ways.

    Args:
        group: The pipeline's; None: all ranks.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        found = group or dist.group.WORLD
        assert found is not None, "the process group is made before the pipeline"
        self._group: dist.ProcessGroup = found

    def sending_to(self, peer: int) -> Route:
        return Route(self._group, peer)

    def receiving_from(self, peer: int) -> Route:
        return Route(self._group, peer)


class DirectedRoutes:
    """A communicator for each direction between two neighbours of a pipeline, connected before the first step.

    NCCL connects a communicator when it is first used, and both ends wait for each other then, on the host. In a step they would
    come to it in different orders; here all ranks go through the same list.

    Args:
        mesh: This rank's place. Every rank of the process group makes its routes together.
        stage_to_rank: Pipeline rank of each stage.
        device: This rank's GPU.
        backend: What carries the tensors.
    """

    def __init__(self, mesh: Mesh, stage_to_rank: Sequence[int], device: torch.device, *, backend: str = "nccl") -> None:
        self._mesh = mesh
        lines = _LINES.setdefault(dist.group.WORLD, {})
        for direction in directions(stage_to_rank, replicas=mesh.replicas):
            if direction not in lines:
                lines[direction] = dist.new_group(list(direction), backend=backend, timeout=TIMEOUT)
                _connect(lines[direction], direction, device)
        self._lines: Mapping[Direction, Any] = lines

    def sending_to(self, peer: int) -> Route:
        return self._route(self._mesh.pipeline_rank, peer, peer)

    def receiving_from(self, peer: int) -> Route:
        return self._route(peer, self._mesh.pipeline_rank, peer)

    def _route(self, source: int, target: int, peer: int) -> Route:
        direction = self._mesh.ranks[source], self._mesh.ranks[target]
        return Route(self._lines[direction], place_in(direction, self._mesh.ranks[peer]))


def directions(stage_to_rank: Sequence[int], *, replicas: int) -> list[Direction]:
    """Return every direction in which tensors travel between two ranks, in an order that all ranks share."""
    neighbours = sorted({(min(a, b), max(a, b)) for a, b in pairwise(stage_to_rank) if a != b})
    length = max(stage_to_rank) + 1
    return [
        (replica * length + source, replica * length + target)
        for replica in range(replicas)
        for low, high in neighbours
        for source, target in ((low, high), (high, low))
    ]


def place_in(direction: Direction, rank: int) -> int:
    """Return the place of a global rank in the group of two that carries ``direction``: torch sorts a group's ranks."""
    return sorted(direction).index(rank)


def make_routes(mesh: Mesh, stage_to_rank: Sequence[int], device: torch.device) -> Routes:
    """Return the routes of this rank; on GPUs every rank calls it together."""
    if device.type == "cuda" and mesh.pipeline_ranks > 1:
        return DirectedRoutes(mesh, stage_to_rank, device)
    return SharedRoutes(mesh.pipeline_group)


def _connect(group: Any, direction: Direction, device: torch.device) -> None:
    rank = dist.get_rank()
    if rank not in direction:
        return
    token = torch.zeros(1, device=device)
    source, target = direction
    if rank == source:
        dist.send(token, dst=target, group=group)
    else:
        dist.recv(token, src=source, group=group)
    token.cpu()  # so that it is connected, and not only about to be
