"""The layers of one stage as one module: run in order, each under its own random seed, timed one by one when sampled."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.layer_marks import LayerMarks
from pptoolkit.engine.randomness import LayerSeeder
from pptoolkit.engine.wiring import Wiring


class _Next:
    """What the next forward needs; apart from the module, whose attributes are slow to set."""

    __slots__ = ("marks", "seeds")

    def __init__(self, seeds: Sequence[int]) -> None:
        self.seeds = seeds
        self.marks: LayerMarks | None = None


class StageModule(nn.Module):
    """The layers ``part`` of the model, as the module of one pipeline stage.

    Args:
        modules: The built layers.
        part: Their indices in the model.
        wiring: What each layer takes and provides by name.
        seeder: Seeds the generators before each layer.
    """

    def __init__(self, modules: Sequence[nn.Module], part: range, *, wiring: Wiring, seeder: LayerSeeder) -> None:
        super().__init__()
        self.names = tuple(wiring.names[i] for i in part)
        self.layers = nn.ModuleList(modules)
        self.first = part.start
        self.takes = tuple(wiring.takes[i] for i in part)
        self.provides = tuple(wiring.provides[i] for i in part)
        self.carried = tuple(wiring.handed_on(range(i, i + 1)) for i in part)  # crosses a cut right after each layer
        self.hands_on = wiring.handed_on(part)
        self.batch_inputs = wiring.from_batch(part)
        self.seeder = seeder
        # A plain list: reading ``layers`` goes through nn.Module's own look-up, which costs more than a small layer.
        self._calls = list(zip(modules, self.takes, self.provides, strict=True))
        self._next = _Next(seeder.seeds(0, range(1))[0])

    def prepare(self, seeds: Sequence[int], *, marks: LayerMarks | None = None) -> None:
        """Give the seeds of the next forward, one a layer; with ``marks``, its layers are timed."""
        self._next.seeds, self._next.marks = seeds, marks

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Run the layers on ``inputs``; ``named`` holds skip connections and inputs of the batch that layers take by name.

        The process's random state is another one afterwards: the caller guards it, once for many forwards.

        Returns:
            What the last layer returns; where skip connections go on to later stages, a pair of that and a dict of them.
        """
        seeds, marks, start = self._next.seeds, self._next.marks, self.seeder.start
        last = len(self._calls) - 1
        value: Any = inputs
        for index, (layer, takes, provides) in enumerate(self._calls):
            if marks is not None:
                marks.begin()
            start(seeds[index])
            taken = {name: named[name] for name in takes} if takes else {}
            value = layer(*value, **taken) if isinstance(value, tuple) else layer(value, **taken)
            if provides:
                named[provides] = value
            if marks is not None and index < last:
                marks.watch(index, value)
        return (value, {name: named[name] for name in self.hands_on}) if self.hands_on else value

    def global_state(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers under ``<layer name>.<name in the layer>``, the same under every cut."""
        return {
            f"{layer_name}.{name}": tensor
            for layer_name, layer in zip(self.names, self.layers, strict=True)
            for name, tensor in layer.state_dict(keep_vars=True).items()
        }
