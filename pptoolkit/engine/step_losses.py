"""The losses of one pass through the schedule on the rank of the last stage, and what the backward passes start from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LossFunction = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True, slots=True)
class PassLoss:
    """The weighted loss of one pass, not read yet: on a GPU reading waits for the pass to be over.

    Args:
        parts: Loss and weight of each micro-batch; none where the last stage is on another rank.
    """

    parts: Sequence[tuple[torch.Tensor, float]]

    def read(self) -> float:
        """Return the sum of the weighted losses, else 0."""
        return float(sum(loss.item() * weight for loss, weight in self.parts))


class StepLosses:
    """Losses by micro-batch.

    Args:
        function: The user's loss.

    Attributes:
        kept: The losses of this pass so far.
    """

    def __init__(self, function: LossFunction) -> None:
        self._function = function
        self._weights: Sequence[float] = ()
        self._gradients: dict[tuple[float, torch.Size, torch.dtype], torch.Tensor] = {}
        self.kept: dict[int, torch.Tensor] = {}

    def begin(self, weights: Sequence[float]) -> None:
        """Begin a pass; ``weights`` are the factors of its micro-batches' losses."""
        self._weights = weights
        self.kept.clear()
        self._gradients.clear()

    def take(self, micro_batch: int, output: Any, target: Any) -> None:
        """Compute the loss of a micro-batch. One that counts nothing has none: a mean over nothing would be no number."""
        found = self._function(output, target) if self._weights[micro_batch] else nothing_to_learn(output)
        self.kept[micro_batch] = _checked(found)

    def let_go(self, micro_batch: int) -> None:
        """Keep the value and not the graph: the backward is over."""
        self.kept[micro_batch] = self.kept[micro_batch].detach()

    def gradient(self, loss: torch.Tensor, micro_batch: int) -> torch.Tensor:
        """Return the derivative of the batch's loss by the micro-batch's: the start of its backward, for one op less than a product."""
        weight = self._weights[micro_batch]
        key = (weight, loss.shape, loss.dtype)
        if key not in self._gradients:
            self._gradients[key] = torch.full_like(loss, weight, requires_grad=False)
        return self._gradients[key]

    def so_far(self) -> PassLoss:
        """Return the weighted loss of the micro-batches until now."""
        return PassLoss([(loss, self._weights[m]) for m, loss in self.kept.items()])


def nothing_to_learn(output: Any) -> torch.Tensor:
    """Return a loss of 0 whose gradients are 0: a mean over nothing would be NaN, and so would every gradient."""
    outputs = output if isinstance(output, tuple | list) else (output,)
    parts = [(t.nan_to_num(0.0, 0.0, 0.0) * 0).sum() for t in outputs if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return torch.stack(parts).sum()


def _checked(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise TypeError(f"the loss function returned {_describe(loss)}; it must return one number, the mean over the micro-batch")
    return loss


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
