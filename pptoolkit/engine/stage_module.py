"""The layers of one stage as one module: run in order, each under its own random seed, timed one by one when sampled."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.randomness import LayerSeeder


class LayerMarks:
    """When each layer of a stage began and ended on one sampled micro-batch, in nanoseconds of the monotonic clock.

    Backward times come from hooks on the tensors between layers: the gradient of layer i's output is complete at the
    moment in which the backward of layer i + 1 is over. Nothing is added to the graph.
    """

    __slots__ = ("backward_ns", "forward_ns")

    def __init__(self, layers: int) -> None:
        self.forward_ns: list[int] = []  # begin of each layer, in order
        self.backward_ns: list[int] = [0] * max(layers - 1, 0)  # [i]: the backward of layer i + 1 was over

    def watch(self, index: int, outputs: tuple[Any, ...]) -> None:
        """Note when the gradients of layer ``index``'s outputs are complete."""

        def note(_: torch.Tensor) -> None:
            self.backward_ns[index] = time.monotonic_ns()  # of several tensors, the last one counts

        for tensor in outputs:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(note)

    def forward_spans(self, end_ns: int) -> list[tuple[int, int]]:
        """Return (start, end) of each layer's forward; the last one ends at ``end_ns``, the loss included."""
        return list(zip(self.forward_ns, [*self.forward_ns[1:], end_ns], strict=True))

    def backward_spans(self, start_ns: int, end_ns: int) -> list[tuple[int, int]] | None:
        """Return (start, end) of each layer's backward in layer order; None where a border carries no gradient."""
        if not all(self.backward_ns):
            return None
        edges = [start_ns, *reversed(self.backward_ns), end_ns]
        return list(reversed(list(pairwise(edges))))


class StageModule(nn.Module):
    """Layers ``first`` to ``first + len(modules) - 1`` of the model, as the module of one pipeline stage.

    Args:
        names: Global layer names, in order.
        modules: The built layers.
        first: Index of the first of them in the model.
        seeder: Seeds the generators before each layer.
    """

    def __init__(self, names: Sequence[str], modules: Sequence[nn.Module], *, first: int, seeder: LayerSeeder) -> None:
        super().__init__()
        self.names = tuple(names)
        self.layers = nn.ModuleList(modules)
        self.first = first
        self.seeder = seeder
        self._step = 0
        self._micro_batch = 0
        self._marks: LayerMarks | None = None

    def prepare(self, *, step: int, micro_batch: int, marks: LayerMarks | None = None) -> None:
        """Say which micro-batch the next forward is for; with ``marks``, its layers are timed."""
        self._step, self._micro_batch, self._marks = step, micro_batch, marks

    def forward(self, *inputs: Any) -> Any:
        marks = self._marks
        last = len(self.layers) - 1
        value: Any = inputs
        with self.seeder.untouched():
            for index, layer in enumerate(self.layers):
                if marks is not None:
                    marks.forward_ns.append(time.monotonic_ns())
                self.seeder.seed(index, self._step, self._micro_batch)
                value = layer(*value) if isinstance(value, tuple) else layer(value)
                if marks is not None and index < last:
                    marks.watch(index, value if isinstance(value, tuple) else (value,))
        return value

    def global_state(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers under ``<layer name>.<name in the layer>``, the same under every cut."""
        return {
            f"{layer_name}.{name}": tensor
            for layer_name, layer in zip(self.names, self.layers, strict=True)
            for name, tensor in layer.state_dict(keep_vars=True).items()
        }
