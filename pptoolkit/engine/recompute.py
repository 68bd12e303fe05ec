"""Activation recompute: a layer keeps its input only, and runs again in the backward pass.

Neutral by construction: torch restores the random state for the second run, so dropout draws the same; and buffers that
the second run changed (running statistics of a batch norm) are put back, so nothing is counted twice.
"""

from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layer(layer: nn.Module) -> None:
    """Let ``layer`` recompute its activations. Names in its state stay as they are."""
    forward = layer.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _BuffersKept(layer)

    def forward_again(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)

    forward_again.plain = forward  # type: ignore[attr-defined]
    layer.forward = forward_again


def keep_activations(layer: nn.Module) -> None:
    """Undo :func:`recompute_layer`, where it was done."""
    layer.forward = getattr(layer.forward, "plain", layer.forward)


class _BuffersKept(AbstractContextManager[None]):
    """Puts a layer's buffers back. Entered once per second run: a schedule that splits the backward pass has two of them."""

    def __init__(self, layer: nn.Module) -> None:
        self._buffers = list(layer.buffers())
        self._before: list[torch.Tensor] = []

    def __enter__(self) -> None:
        self._before = [buffer.clone() for buffer in self._buffers]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for buffer, before in zip(self._buffers, self._before, strict=True):
            # Past the version counter: the graphs of other micro-batches in flight hold these buffers, and do not read them.
            buffer.data.copy_(before)
