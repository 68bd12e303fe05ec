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


class SleepingLayer(nn.Module):
    """``tanh(W x + b)``, (B, width) to (B, width), that takes ``forward_s`` and ``backward_s`` seconds.

    The arithmetic and autograd's own work come on top: one to three tenths of a millisecond a pass at small widths. A layer
    whose weights are frozen and whose input needs no gradient has no backward, and sleeps in none. The host sleeps: on an
    accelerator the device is not kept busy.

    Args:
        width: Width of input and output.
        forward_s: Seconds to sleep in each forward.
        backward_s: Seconds to sleep in each backward.
        dtype: Of the parameters; None: torch's default.
    """

    def __init__(self, width: int, forward_s: float, backward_s: float, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self.forward_s, self.backward_s = forward_s, backward_s
        self.linear = nn.Linear(width, width, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        output = torch.tanh(self.linear(x))
        # After the arithmetic: this output needs a gradient even where the input does not, as in the first layer.
        return cast(Tensor, _Sleep.apply(output, self.forward_s, self.backward_s))  # type: ignore[no-untyped-call]


def sleeping_layers(
    forward_s: Sequence[float], backward_s: Sequence[float], *, width: int = 8, dtype: torch.dtype | None = None
) -> list[Layer]:
    """Return layers "sleep00", "sleep01", ..., one for each pair of times.

    Args:
        forward_s: Seconds of each layer's forward, per micro-batch of any size.
        backward_s: Seconds of each layer's backward.
        width: Width of all layers.
        dtype: Of the parameters; None: torch's default.

    Raises:
        ConfigError: If the lists are empty or differ in length, or a time is negative.
    """
    if len(forward_s) != len(backward_s) or not forward_s:
        raise ConfigError(f"forward_s has {len(forward_s)} times and backward_s {len(backward_s)}; give one of each for every layer")
    if min(*forward_s, *backward_s) < 0:
        raise ConfigError(f"forward_s={list(forward_s)}, backward_s={list(backward_s)} hold a negative time; use seconds, 0 or more")
    typed: dict[str, Any] = {} if dtype is None else {"dtype": dtype}
    pairs = zip(forward_s, backward_s, strict=True)
    return [Layer(f"sleep{i:02d}", SleepingLayer, width, float(f), float(b), **typed) for i, (f, b) in enumerate(pairs)]


def _is_real(tensor: Tensor) -> bool:
    """Whether the tensor holds numbers; shapes are inferred with fake tensors (a subclass) or on the meta device."""
    return type(tensor) is Tensor and not tensor.is_meta
