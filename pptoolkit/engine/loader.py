"""Where a step's samples come from: a data set by index, cut into the replicas' parts; or an iterable of batches."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from pptoolkit.errors import ConfigError, DataError


class BatchSource:
    """A data set seen as batches of a fixed size, of which every replica takes its part.

    Args:
        dataset: ``len(dataset)`` samples; ``dataset[i]`` or ``dataset.batch(indices)`` gives inputs and targets.
        batch_size: Samples per step, over all replicas.
        micro_batches: Micro-batches that a replica's part is cut into, over all accumulated batches.
        replica: Whose part to give.
        replicas: Parts of a batch.

    Raises:
        ConfigError: If a replica would have fewer samples than micro-batches.
        DataError: If the data set has no length, or less than one batch.
    """

    def __init__(self, dataset: Any, *, batch_size: int, micro_batches: int, replica: int = 0, replicas: int = 1) -> None:
        self._dataset, self.batch_size = dataset, batch_size
        self._replica, self._replicas = replica, replicas
        least = micro_batches * replicas
        if batch_size < least:
            parts = f"{micro_batches} micro-batches" + (f" on each of {replicas} replicas" if replicas > 1 else "")
            raise ConfigError(f"batch_size={batch_size} cannot be cut into {parts}; use batch_size={least} or more, or fewer micro-batches")
        if not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
            raise DataError(f"{type(dataset).__name__} has no samples by index; pass a map-style data set: len(dataset) and dataset[i]")
        try:
            self.samples = len(dataset)
        except TypeError as error:
            raise DataError(f"{type(dataset).__name__} has no length; pass a map-style data set: len(dataset) and dataset[i]") from error
        self.name = str(getattr(dataset, "source", type(dataset).__name__))
        if self.samples < batch_size:
            require = getattr(dataset, "require", None)
            if require is not None:
                require(batch_size)
            raise DataError(f"{self.name} has {self.samples} samples, fewer than batch_size={batch_size}; use a smaller batch or more data")
        self.tokens_per_sample = int(getattr(dataset, "sequence", 0))

    def __len__(self) -> int:
        return self.samples // self.batch_size

    def parts(self, order: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Yield this replica's part of each batch of sample indices in ``order``."""
        return (self.batch(self.part(indices)) for indices in order)

    def part(self, indices: Sequence[int] | Any) -> Sequence[int] | Any:
        """Return this replica's part of a batch's sample indices."""
        count = len(indices)
        return indices[count * self._replica // self._replicas : count * (self._replica + 1) // self._replicas]

    def batch(self, indices: Sequence[int] | Any) -> tuple[Any, Any]:
        """Return (inputs, targets) of the samples ``indices``, samples along the first dimension.

        Raises:
            DataError: If a sample is no pair of input and target.
        """
        fast = getattr(self._dataset, "batch", None)
        return _pair(fast(indices) if fast is not None else self._collate(indices), self.name)

    def _collate(self, indices: Sequence[int] | Any) -> Any:
        if isinstance(self._dataset, torch.utils.data.TensorDataset):
            return tuple(t[torch.as_tensor(list(indices))] for t in self._dataset.tensors)
        return default_collate([self._dataset[int(i)] for i in indices])


class BatchStream:
    """An iterable of batches, of a size of their own; each replica has its own iterable, and they may be unequally long.

    Args:
        stream: Yields (inputs, targets), the same on all ranks of a replica.
    """

    batch_size = 0  # not known before
    tokens_per_sample = 0

    def __init__(self, stream: Iterable[Any]) -> None:
        self._stream = stream
        self.name = type(stream).__name__

    def parts(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batches in the stream's own order, until it ends."""
        return (_pair(batch, self.name) for batch in self._stream)


def open_source(dataset: Any, *, batch_size: int | None, micro_batches: int, replica: int, replicas: int) -> BatchSource | BatchStream:
    """Return the source of a training's batches.

    Raises:
        ConfigError: If ``batch_size`` is missing for a data set, or given for an iterable of batches.
    """
    if hasattr(dataset, "__iter__") and not (hasattr(dataset, "__getitem__") or hasattr(dataset, "batch")):
        if batch_size is not None:
            raise ConfigError(
                f"{type(dataset).__name__} yields batches of its own size, so batch_size={batch_size} means nothing; leave batch_size out"
            )
        return BatchStream(dataset)
    if batch_size is None:
        raise ConfigError("batch_size is missing; pass batch_size=..., the samples of one step over all replicas")
    return BatchSource(dataset, batch_size=batch_size, micro_batches=micro_batches, replica=replica, replicas=replicas)


def _pair(batch: Any, name: str) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(f"{name} gave {type(batch).__name__}; each sample must be a pair (input, target)")
    return batch[0], batch[1]
