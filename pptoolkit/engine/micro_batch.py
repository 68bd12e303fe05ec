"""Cutting a batch into micro-batches and weighing each by its share of the samples. Any nesting of tensors works."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from pptoolkit.errors import PlanError


def batch_size(batch: Any) -> int:
    """Return the number of samples: the first dimension of the first tensor in ``batch``.

    Raises:
        PlanError: If there is no tensor in it, or the tensors disagree.
    """
    sizes = {int(t.shape[0]) if t.dim() else 0 for t in _tensors(batch)}
    if len(sizes) != 1 or 0 in sizes:
        raise PlanError(f"a batch's tensors have {sorted(sizes)} samples in their first dimension; they must agree, and be at least 1")
    return sizes.pop()


def split(batch: Any, count: int) -> list[Any]:
    """Cut ``batch`` along its first dimension into ``count`` micro-batches, the first ones one sample larger if need be.

    Raises:
        PlanError: If there are fewer samples than micro-batches.
    """
    samples = batch_size(batch)
    if samples < count:
        raise PlanError(f"a batch of {samples} samples cannot be cut into {count} micro-batches; use at most {samples} micro-batches")
    edges = [samples * i // count for i in range(count + 1)]
    return [_map(batch, lambda t, a=a, b=b: t[a:b]) for a, b in pairwise(edges)]  # type: ignore[misc]


def weights(micro_batches: list[Any]) -> list[float]:
    """Return each micro-batch's share of the samples, so that weighted mean losses add up to the batch's mean loss."""
    sizes = [batch_size(m) for m in micro_batches]
    return [n / sum(sizes) for n in sizes]


def to_device(batch: Any, device: torch.device) -> Any:
    return batch if device.type == "cpu" else _map(batch, lambda t: t.to(device, non_blocking=True))


def as_arguments(inputs: Any) -> tuple[Any, ...]:
    """Return the positional arguments of the first layer: a tuple as it is, anything else as the only one."""
    return inputs if isinstance(inputs, tuple) else tuple(inputs) if isinstance(inputs, list) else (inputs,)


def _tensors(batch: Any) -> list[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if isinstance(batch, dict):
        return [t for value in batch.values() for t in _tensors(value)]
    if isinstance(batch, tuple | list):
        return [t for value in batch for t in _tensors(value)]
    return []


def _map(batch: Any, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    if isinstance(batch, torch.Tensor):
        return function(batch)
    if isinstance(batch, dict):
        return {key: _map(value, function) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_map(value, function) for value in batch)
    return batch
