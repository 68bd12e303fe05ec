"""A small perceptron as a layer list: smooth, quick and exact enough in float64 to compare runs to rounding."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pptoolkit.engine.layers import Layer
from pptoolkit.errors import ConfigError


class Perceptron(nn.Module):
    """Linear, tanh and dropout: (B, width) to (B, width)."""

    def __init__(self, width: int, dropout: float = 0.0, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, dtype=dtype)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.linear(x)))  # type: ignore[no-any-return]


def mlp_layers(width: int, depth: int, *, dropout: float = 0.0, dtype: torch.dtype | None = None) -> list[Layer]:
    """Return ``depth`` layers "layer00", "layer01", ... of (B, width) to (B, width).

    Raises:
        ConfigError: If a number is out of range.
    """
    if width < 1 or depth < 1:
        raise ConfigError(f"width={width}, depth={depth} make no model; use 1 or more of each")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout={dropout} is out of range; use 0 or more and less than 1")
    typed: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    return [Layer(f"layer{i:02d}", Perceptron, width, dropout, **typed) for i in range(depth)]


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error over all elements."""
    return functional.mse_loss(output, target)
