"""Keeping the replicas of a pipeline equal: gradients are summed once per step, after the last backward of all micro-batches.

The loss of a replica is weighted by its share of the whole batch, so the sum over the replicas is the gradient of the
whole batch's mean, also where the shares are unequal.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine.mesh import Mesh

_BUCKET_BYTES = 25 << 20


class Replicas(Protocol):
    """What a step asks of the replicas."""

    loss_factor: float  # what a loss must be multiplied by, so that the reduced gradient is the sum

    def gather(self) -> None:
        """Make the parameters whole before the step's first forward."""

    def reduce(self) -> None:
        """Sum the gradients over the replicas, after the step's last backward."""

    def scatter(self) -> None:
        """Undo :meth:`gather` where no backward followed."""

    def own_gradients(self) -> list[torch.Tensor]:
        """Return this rank's gradients, to be changed in place."""

    def counted_gradients(self) -> list[torch.Tensor]:
        """Return the gradients that this rank adds to the global norm: over all ranks, each exactly once."""


class WholeReplicas:
    """Every replica holds all parameters. Also the only replica of a run without any.

    Args:
        mesh: This rank's place.
        parameters: This rank's parameters that train, in an order that is the same on all replicas.
        counted: Those of them that this rank adds to the global norm: no copies of what another rank owns.
        layers: This rank's layers.
        bucket_bytes: Gradients are sent in pieces of about this size.
    """

    loss_factor = 1.0

    def __init__(
        self,
        mesh: Mesh,
        parameters: Sequence[nn.Parameter],
        counted: Sequence[nn.Parameter],
        layers: Sequence[nn.Module],
        *,
        bucket_bytes: int = _BUCKET_BYTES,
    ) -> None:
        self._mesh, self._parameters, self._counted, self._bucket_bytes = mesh, list(parameters), list(counted), bucket_bytes
        self._statistics = list(running_statistics(layers))

    def gather(self) -> None:
        """Nothing to do: the parameters are whole."""

    def scatter(self) -> None:
        """Nothing to do."""

    def reduce(self) -> None:
        group = self._mesh.replica_group
        if group is None:
            return
        buckets = [_Bucket(parameters, group) for parameters in self._buckets()]
        for bucket in buckets:
            bucket.finish()
        average(self._statistics, group, self._mesh.replicas)

    def own_gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._parameters if p.grad is not None]

    def counted_gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self._counted if p.grad is not None] if self._mesh.replica == 0 else []

    def _buckets(self) -> Iterator[list[nn.Parameter]]:
        """Yield runs of parameters of one type, each of about ``bucket_bytes``."""
        bucket: list[nn.Parameter] = []
        size = 0
        for parameter in sorted(self._parameters, key=lambda p: str(p.dtype)):
            if bucket and (size >= self._bucket_bytes or parameter.dtype is not bucket[0].dtype):
                yield bucket
                bucket, size = [], 0
            bucket.append(parameter)
            size += parameter.numel() * parameter.element_size()
        if bucket:
            yield bucket


class _Bucket:
    """One flat sum on its way. A flag per parameter tells whether any replica has a gradient for it."""

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup) -> None:
        self._parameters = parameters
        first = parameters[0]
        flags = torch.tensor([p.grad is not None for p in parameters], dtype=first.dtype, device=first.device)
        # Not zeros_like(p): where a gradient is missing, the others' sum is taken.
        pieces = [torch.zeros(p.numel(), dtype=p.dtype, device=p.device) if p.grad is None else p.grad.reshape(-1) for p in parameters]
        self._flat = torch.cat([*pieces, flags])
        self._work = dist.all_reduce(self._flat, group=group, async_op=True)

    def finish(self) -> None:
        assert self._work is not None
        self._work.wait()
        *sums, flags = self._flat.split([*(p.numel() for p in self._parameters), len(self._parameters)])
        for parameter, total, present in zip(self._parameters, sums, flags.tolist(), strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(total.view_as(parameter))
            elif present:
                parameter.grad = total.view_as(parameter).clone()


class ShardedReplicas:
    """Each replica keeps a shard of every parameter, gradient and optimizer state: torch's ``fully_shard``, layer by layer.

    Parameters are whole from a step's first forward to its last backward: one gather and one reduction per step, however
    many micro-batches there are. Frozen ones are sharded and gathered with the others of their layer, and left out of the reduction.
    """

    def __init__(self, mesh: Mesh, stage_modules: Sequence[Any], stages: Sequence[Any]) -> None:
        from torch.distributed.fsdp import fully_shard

        self._mesh, self._modules, self._stages = mesh, list(stage_modules), list(stages)
        self._statistics = list(running_statistics(self._modules))
        self.loss_factor = float(mesh.replicas)  # fully_shard takes the mean over the replicas
        for module in self._modules:
            for layer in module.layers:
                if any(True for _ in layer.parameters()):
                    fully_shard(layer, mesh=mesh.replica_mesh, reshard_after_forward=False)
            fully_shard(module, mesh=mesh.replica_mesh, reshard_after_forward=False)

    def gather(self) -> None:
        for module in self._sharded():
            module.unshard()

    def scatter(self) -> None:
        for module in self._sharded():
            module.reshard()

    def reduce(self) -> None:
        for stage in self._stages:
            stage.perform_reduce_grad(1)
        self.scatter()
        group = self._mesh.replica_group
        assert group is not None
        average(self._statistics, group, self._mesh.replicas)

    def own_gradients(self) -> list[torch.Tensor]:
        parameters = chain.from_iterable(module.parameters() for module in self._modules)
        return [local(p.grad) for p in parameters if p.grad is not None]

    def counted_gradients(self) -> list[torch.Tensor]:
        return self.own_gradients()

    def _sharded(self) -> Iterator[Any]:
        from torch.distributed.fsdp import FSDPModule

        return (m for module in self._modules for m in module.modules() if isinstance(m, FSDPModule))


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor; any other tensor as it is."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a sharded tensor as a whole, a collective of its replicas; any other tensor as it is."""
    full_tensor = getattr(tensor, "full_tensor", None)
    return tensor if full_tensor is None else full_tensor()


def running_statistics(modules: Sequence[nn.Module]) -> Iterator[torch.Tensor]:
    """Yield the running means and variances of all batch norms."""
    for module in modules:
        for part in module.modules():
            if isinstance(part, nn.modules.batchnorm._NormBase) and part.track_running_stats:
                yield from (t for t in (part.running_mean, part.running_var) if t is not None)


def average(tensors: Sequence[torch.Tensor], group: dist.ProcessGroup, replicas: int) -> None:
    """Replace each tensor by its mean over the replicas, so that every replica evaluates alike."""
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor /= replicas
