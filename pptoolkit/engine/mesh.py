"""The (replica, pipeline) mesh: which replica a rank works for, and the process groups along both sides.

global rank = replica * pipeline ranks + pipeline rank

pipeline rank      0   1   2
replica 0          0   1   2      <- one pipeline: activations and gradients pass along a row
replica 1          3   4   5
                   |   |   |
                   gradients are summed along a column
"""

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pptoolkit.errors import PlanError, counted

_REPLICA, _PIPELINE = "replica", "pipeline"
_MESHES: WeakKeyDictionary[Any, dict[tuple[int, str], DeviceMesh]] = WeakKeyDictionary()  # by process group


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """This rank's place. Without replicas there is no device mesh: the whole world is one pipeline."""

    replica: int
    replicas: int
    pipeline_rank: int
    pipeline_ranks: int
    device_mesh: DeviceMesh | None

    @classmethod
    def of(cls, replicas: int, *, device_type: str = "cpu") -> "Mesh":
        """Lay the ranks of the process group out as ``replicas`` pipelines; every rank calls it together.

        Args:
            replicas: Number of pipelines.
            device_type: Where the ranks compute: ``"cpu"`` or ``"cuda"``; sharded parameters live there.

        Raises:
            PlanError: If the replicas do not divide the ranks.
        """
        rank, ranks = dist.get_rank(), dist.get_world_size()
        if ranks % replicas:
            raise PlanError(f"replicas={replicas} do not divide {counted(ranks, 'rank')}; start a multiple of {replicas} ranks")
        length = ranks // replicas
        mesh = _device_mesh(replicas, length, device_type) if replicas > 1 else None
        return cls(replica=rank // length, replicas=replicas, pipeline_rank=rank % length, pipeline_ranks=length, device_mesh=mesh)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global rank of each pipeline rank of this replica."""
        first = self.replica * self.pipeline_ranks
        return tuple(range(first, first + self.pipeline_ranks))

    @property
    def pipeline_group(self) -> dist.ProcessGroup | None:
        """The ranks of this replica; None means all ranks."""
        return self.device_mesh.get_group(_PIPELINE) if self.device_mesh is not None else None

    @property
    def replica_group(self) -> dist.ProcessGroup | None:
        """The ranks that hold the same layers, one in each replica; None where there is one replica."""
        return self.device_mesh.get_group(_REPLICA) if self.device_mesh is not None else None

    @property
    def replica_mesh(self) -> DeviceMesh | None:
        """The one-dimensional mesh of :attr:`replica_group`."""
        return self.device_mesh[_REPLICA] if self.device_mesh is not None else None


def _device_mesh(replicas: int, length: int, device_type: str) -> DeviceMesh:
    """Return the mesh of this process group, made once: its groups end with it, and torch remembers groups by their name."""
    meshes = _MESHES.setdefault(dist.group.WORLD, {})
    if (replicas, device_type) not in meshes:
        meshes[replicas, device_type] = init_device_mesh(device_type, (replicas, length), mesh_dim_names=(_REPLICA, _PIPELINE))
    return meshes[replicas, device_type]
