"""When each layer of a stage began and ended on one sampled micro-batch."""

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from pptoolkit.engine.border import tensors_in
from pptoolkit.engine.torch_private import call_with_gradient
from pptoolkit.telemetry.events import Op


class LayerMarks:
    """Marks between the layers of one forward and its backward.

    Backward marks come from hooks on the tensors between layers: the gradient of layer i's output is complete at the
    moment in which the backward of layer i + 1 is over. Nothing is added to the graph.

    Args:
        layers: Layers of the stage.
        note: Gives a mark: the host's time in nanoseconds, or something that stands for a time that is not known yet.

    Attributes:
        forward: Begin of each layer, in order.
        backward: ``[i]``: the backward of layer i + 1 was over; 0: it was not noted.
    """

    __slots__ = ("backward", "forward", "note")

    def __init__(self, layers: int, note: Callable[[], Any] = time.monotonic_ns) -> None:
        self.note = note
        self.forward: list[Any] = []
        self.backward: list[Any] = [0] * max(layers - 1, 0)

    def begin(self) -> None:
        """Note that the next layer begins."""
        self.forward.append(self.note())

    def watch(self, index: int, output: Any) -> None:
        """Note when the gradients of layer ``index``'s output are complete; of several tensors, the last one counts."""
        for tensor in (output,) if type(output) is torch.Tensor else tensors_in(output):
            if tensor.requires_grad:
                call_with_gradient(tensor, partial(self._note_backward, index))

    def _note_backward(self, index: int, _gradient: torch.Tensor) -> None:
        self.backward[index] = self.note()


Span = tuple[int, int]  # begin and end, in nanoseconds


def forward_spans(forward_ns: list[int], end_ns: int) -> list[Span]:
    """Return (start, end) of each layer's forward; the last one ends at ``end_ns``, the loss included."""
    return list(zip(forward_ns, [*forward_ns[1:], end_ns], strict=True))


def backward_spans(backward_ns: list[int], start_ns: int, end_ns: int) -> list[Span]:
    """Return (start, end) of each layer's backward in layer order; none if no border carried a gradient.

    Layers below the last border that carries one have no backward: theirs takes no time.
    """
    if backward_ns and not any(backward_ns):
        return []
    edges = [start_ns]
    for noted in reversed(backward_ns):
        edges.append(max(edges[-1], noted or end_ns))  # a skip connection can complete an earlier border later
    return list(reversed(list(pairwise([*edges, end_ns]))))


def layer_spans(op: Op, marks: LayerMarks, span: Span, at_ns: Callable[[Any], int]) -> list[Span]:
    """Return (start, end) of each layer in the forward or backward that took ``span``; ``at_ns`` gives the time of a mark."""
    if op == Op.LAYER_FORWARD:
        return forward_spans([at_ns(mark) for mark in marks.forward], span[1])
    return backward_spans([at_ns(mark) if mark else 0 for mark in marks.backward], *span)
