"""Cutting a batch into micro-batches and weighing each by its share of the samples. Any nesting of tensors works."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from pptoolkit.engine.border import TensorSpec, tensors_in
from pptoolkit.errors import PlanError


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Inputs or targets that are cut into micro-batches already, which may differ in every dimension: a sequence length each.

    Args:
        parts: One for each micro-batch of the plan, each with its samples along the first dimension.
    """

    parts: Sequence[Any]


def batch_size(batch: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor in ``batch``.

    Raises:
        PlanError: If there is no tensor in it, or the tensors disagree.
    """
    sizes = {int(t.shape[0]) if t.dim() else 0 for t in tensors_in(batch)}
    if len(sizes) != 1 or 0 in sizes:
        raise PlanError(f"a batch's tensors have {sorted(sizes)} samples in their first dimension; they must agree, and be at least 1")
    return sizes.pop()


def split(batch: Any, count: int) -> list[Any]:
    """Cut ``batch`` along its first dimension into ``count`` micro-batches, the first ones one sample larger if need be.

    Raises:
        PlanError: If there are fewer samples than micro-batches.
    """
    if isinstance(batch, MicroBatches):
        if len(batch.parts) != count:
            raise PlanError(f"the batch is cut into {len(batch.parts)} micro-batches, but the plan has {count}; cut it into {count}")
        return list(batch.parts)
    edges = _edges(batch, count)
    if count == 1:
        return [batch]
    return [apply(batch, lambda t, a=a, b=b: t[a:b]) for a, b in pairwise(edges)]  # type: ignore[misc]


def sizes(batch: Any, count: int) -> list[int]:
    """Return the samples of each micro-batch into which :func:`split` cuts ``batch``.

    Raises:
        PlanError: As :func:`split`.
    """
    if isinstance(batch, MicroBatches):
        return [batch_size(part) for part in split(batch, count)]
    return [b - a for a, b in pairwise(_edges(batch, count))]


def weights(micro_batches: list[Any]) -> list[float]:
    """Return each micro-batch's share of the samples, so that weighted mean losses add up to the batch's mean loss."""
    sizes = [batch_size(m) for m in micro_batches]
    return [n / sum(sizes) for n in sizes]


def to_device(batch: Any, device: torch.device) -> Any:
    return batch if device.type == "cpu" else apply(batch, lambda t: t.to(device, non_blocking=True))


def key_of(value: Any) -> Hashable:
    """Return what shape inference depends on: shapes and kinds of tensors, and everything else as it is."""
    if isinstance(value, torch.Tensor):
        return TensorSpec.of(value)
    if isinstance(value, dict):
        return "dict", tuple((key, key_of(entry)) for key, entry in value.items())
    if isinstance(value, tuple | list):
        return type(value).__name__, tuple(key_of(entry) for entry in value)
    return value if isinstance(value, int | float | str | bool | None) else type(value).__qualname__


def apply(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return ``batch`` with ``function`` of every tensor in its place."""
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: apply(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(apply(value, function) for value in batch)
    if isinstance(batch, MicroBatches):
        return MicroBatches([apply(part, function) for part in batch.parts])
    return batch


def _edges(batch: Any, count: int) -> list[int]:
    samples = batch_size(batch)
    if samples < count:
        raise PlanError(f"a batch of {samples} samples cannot be cut into {count} micro-batches; use at most {samples} micro-batches")
    return [samples * i // count for i in range(count + 1)]
