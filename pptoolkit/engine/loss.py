"""The loss of a micro-batch and what it counts for: its samples, or the user's own measure such as valid tokens."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.step_losses import LossFunction
from pptoolkit.errors import ConfigError


class WeightedLoss:
    """A mean over something else than samples, e.g. over the tokens that are not padding.

    The step's loss is then the mean over the whole batch (all micro-batches, accumulated steps and replicas), however
    unequal their shares are. A micro-batch with nothing to count adds nothing, instead of a NaN: its loss is not asked for.

    Args:
        loss: ``loss(output, target)``: the mean over what ``weight`` counts in the target.
        weight: ``weight(target)``: how much there is to count, e.g. ``lambda target: (target != -100).sum()``.
    """

    def __init__(self, loss: LossFunction, *, weight: Callable[[Any], Any]) -> None:
        self.loss, self.weight = loss, weight

    def __call__(self, output: Any, target: Any) -> torch.Tensor:
        return self.loss(output, target)


class MicroBatchLoss:
    """What the pipeline calls for each micro-batch.

    Args:
        loss: The user's loss, maybe a :class:`WeightedLoss`.
        compute_type: Gives the context in which layers and loss compute.
    """

    def __init__(self, loss: LossFunction, compute_type: Callable[[], AbstractContextManager[Any]]) -> None:
        self._loss, self._compute_type = loss, compute_type
        self._weight = loss.weight if isinstance(loss, WeightedLoss) else None

    @property
    def counts_samples(self) -> bool:
        return self._weight is None

    def count(self, targets: Any) -> float:
        """Return how much ``targets`` count for: their samples, or what the user's weight says.

        Raises:
            ConfigError: If the weight is no number of at least 0.
        """
        if self._weight is None:
            return float(mb.batch_size(targets))
        weight = float(self._weight(targets))
        if not 0 <= weight < float("inf"):
            raise ConfigError(f"the loss's weight function returned {weight}; it must return a number of at least 0")
        return weight

    def __call__(self, output: Any, target: Any) -> torch.Tensor:
        with self._compute_type():
            loss = self._loss(output, target)
        # The scale of a float16 loss would overflow at once.
        return loss.float() if isinstance(loss, torch.Tensor) and loss.dtype in (torch.float16, torch.bfloat16) else loss
