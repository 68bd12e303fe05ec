"""Layers whose forward and backward take known times and no processor: ground truth for schedules, planner and diagnosis.

Ranks that sleep do not compete for cores, so a pipeline of many ranks can be timed on a machine with few. Each layer still
has a small real parameter, so that gradients can be compared with one process.
"""

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from pptoolkit.engine.layers import Layer
from pptoolkit.errors import ConfigError

# A plain sleep ends some 0.1 ms late on Linux (timer slack and wake-up); the last stretch is therefore spent awake.
_AWAKE_S = 0.0002


def sleep_precisely(seconds: float) -> None:
    """Return ``seconds`` from now, within some microseconds where the processor is free. Not before, in any case."""
    end = time.perf_counter() + seconds
    if seconds > _AWAKE_S:
        time.sleep(seconds - _AWAKE_S)
    while time.perf_counter() < end:
        pass


class _Sleep(torch.autograd.Function):
    """Identity that sleeps on the way forward and on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, forward_s: float, backward_s: float) -> Tensor:
        ctx.backward_s = backward_s
        if _is_real(x):
            sleep_precisely(forward_s)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if _is_real(gradient):
            sleep_precisely(ctx.backward_s)
        return gradient, None, None


class _SleepForWeight(torch.autograd.Function):
    """Identity of a parameter that sleeps when its gradient is computed."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, weight_s: float) -> Tensor:
        ctx.weight_s = weight_s
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        if _is_real(gradient):
            sleep_precisely(ctx.weight_s)
        return gradient, None


class SleepingLayer(nn.Module):
    """``tanh(W x + b)``, (B, width) to (B, width), that takes ``forward_s`` and ``backward_s`` seconds.

    The arithmetic and autograd's own work come on top: one to three tenths of a millisecond a pass at small widths. A layer
    whose weights are frozen and whose input needs no gradient has no backward, and sleeps in none. The host sleeps: on an
    accelerator the device is not kept busy.

    Args:
        width: Width of input and output.
        forward_s: Seconds to sleep in each forward.
        backward_s: Seconds to sleep in each backward.
        weight_s: How many of these belong to the gradient of the weights: where a schedule runs the backward in two parts, they are
            slept in the weight part, and the others in the input part. A frozen layer does not sleep them.
        dtype: Of the parameters; None: torch's default.
    """

    def __init__(self, width: int, forward_s: float, backward_s: float, *, weight_s: float = 0.0, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.forward_s, self.backward_s, self.weight_s = forward_s, backward_s, weight_s
        self.linear = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.linear.weight
        if self.weight_s:
            weight = _SleepForWeight.apply(weight, self.weight_s)  # type: ignore[no-untyped-call]
        output = torch.tanh(nn.functional.linear(x, weight, self.linear.bias))
        # After the arithmetic: this output needs a gradient even where the input does not, as in the first layer.
        return cast(Tensor, _Sleep.apply(output, self.forward_s, self.backward_s - self.weight_s))  # type: ignore[no-untyped-call]


def sleeping_layers(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    *,
    weight_s: Sequence[float] | None = None,
    width: int = 8,
    dtype: torch.dtype | None = None,
) -> list[Layer]:
    """Return layers "sleep00", "sleep01", ..., one for each pair of times.

    Args:
        forward_s: Seconds of each layer's forward, per micro-batch of any size.
        backward_s: Seconds of each layer's backward.
        weight_s: Seconds of ``backward_s`` that belong to the gradient of the weights; None: none.
        width: Width of all layers.
        dtype: Of the parameters; None: torch's default.

    Raises:
        ConfigError: If the lists are empty or differ in length, a time is negative, or a weight part is longer than its backward.
    """
    if len(forward_s) != len(backward_s) or not forward_s:
        raise ConfigError(f"forward_s has {len(forward_s)} times and backward_s {len(backward_s)}; give one of each for every layer")
    if min(*forward_s, *backward_s) < 0:
        raise ConfigError(f"forward_s={list(forward_s)}, backward_s={list(backward_s)} hold a negative time; use seconds, 0 or more")
    parts = [0.0] * len(backward_s) if weight_s is None else [float(w) for w in weight_s]
    if len(parts) != len(backward_s) or any(not 0 <= w <= b for w, b in zip(parts, backward_s, strict=True)):
        raise ConfigError(
            f"weight_s={parts} does not fit backward_s={list(backward_s)}; give each layer 0 or more, and no more than its backward"
        )
    layers = []
    for i, (f, b, w) in enumerate(zip(forward_s, backward_s, parts, strict=True)):
        options: dict[str, Any] = ({} if dtype is None else {"dtype": dtype}) | ({"weight_s": w} if w else {})
        layers.append(Layer(f"sleep{i:02d}", SleepingLayer, width, float(f), float(b), **options))
    return layers


def _is_real(tensor: Tensor) -> bool:
    """Whether the tensor holds numbers; shapes are inferred with fake tensors (a subclass) or on the meta device."""
    return type(tensor) is Tensor and not tensor.is_meta
