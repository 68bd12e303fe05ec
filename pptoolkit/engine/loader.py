"""Batches by index: from a data set's own ``batch`` where it has one, else sample by sample."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import default_collate

from pptoolkit.errors import ConfigError, DataError


class BatchSource:
    """A data set seen as batches of a fixed size.

    Args:
        dataset: ``len(dataset)`` samples; ``dataset[i]`` or ``dataset.batch(indices)`` gives inputs and targets.
        batch_size: Samples per step.
        micro_batches: Micro-batches that a batch is cut into.

    Raises:
        ConfigError: If the micro-batches do not divide the batch.
        DataError: If the data set has no length, or less than one batch.
    """

    def __init__(self, dataset: Any, *, batch_size: int, micro_batches: int) -> None:
        self._dataset, self.batch_size = dataset, batch_size
        if batch_size < 1 or batch_size % micro_batches:
            best = max(micro_batches, batch_size // micro_batches * micro_batches)
            raise ConfigError(
                f"batch_size={batch_size} cannot be cut into {micro_batches} equal micro-batches; "
                f"use batch_size={best}, or micro_batches that divide it"
            )
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

    def batch(self, indices: Sequence[int] | Any) -> tuple[Any, Any]:
        """Return (inputs, targets) of the samples ``indices``, samples along the first dimension.

        Raises:
            DataError: If a sample is no pair of input and target.
        """
        fast = getattr(self._dataset, "batch", None)
        pair = fast(indices) if fast is not None else self._collate(indices)
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise DataError(f"{self.name} gave {type(pair).__name__}; each sample must be a pair (input, target)")
        return pair[0], pair[1]

    def _collate(self, indices: Sequence[int] | Any) -> Any:
        if isinstance(self._dataset, torch.utils.data.TensorDataset):
            return tuple(t[torch.as_tensor(list(indices))] for t in self._dataset.tensors)
        return default_collate([self._dataset[int(i)] for i in indices])
