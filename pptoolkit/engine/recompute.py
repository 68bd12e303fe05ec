"""Activation recompute: a layer keeps its input only, and runs again in the backward pass.

Neutral by construction: torch restores the random state for the second run, so dropout draws the same; and buffers that
the second run changed (running statistics of a batch norm) are put back, so nothing is counted twice.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_layer(layer: nn.Module) -> None:
    """Let ``layer`` recompute its activations. Names in its state stay as they are."""
    forward = layer.forward

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), _buffers_kept(layer)

    def forward_again(*inputs: Any, **named: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*inputs, **named)
        return checkpoint(forward, *inputs, use_reentrant=False, context_fn=contexts, **named)

    layer.forward = forward_again


@contextmanager
def _buffers_kept(layer: nn.Module) -> Iterator[None]:
    kept = [(buffer, buffer.clone()) for buffer in layer.buffers()]
    try:
        yield
    finally:
        for buffer, before in kept:
            # Past the version counter: the graphs of other micro-batches in flight hold these buffers, and do not read them.
            buffer.data.copy_(before)
