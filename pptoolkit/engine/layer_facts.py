"""What is known of the layers of one rank before they are timed, and what is worth a warning about them."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import nn

from pptoolkit.engine.shapes import StageShapes
from pptoolkit.engine.stage_module import StageModule


@dataclass(frozen=True, slots=True)
class LayerFact:
    """What is known of a layer before it runs, in bytes per micro-batch of the first shape seen."""

    index: int
    name: str
    parameters: int
    parameter_bytes: int
    activation_bytes: int  # kept for the backward pass
    boundary_bytes: int  # handed to the next layer


def layer_facts(modules: Mapping[int, StageModule], shapes: Mapping[int, StageShapes]) -> list[LayerFact]:
    """Return the facts of all layers of some stages; the bytes are 0 for a stage whose shapes are not known."""
    facts = []
    for stage_index, module in modules.items():
        known = shapes.get(stage_index)
        for offset, (name, layer) in enumerate(zip(module.names, module.layers, strict=True)):
            parameters = list(layer.parameters())
            facts.append(
                LayerFact(
                    module.first + offset,
                    name,
                    sum(p.numel() for p in parameters),
                    sum(p.numel() * p.element_size() for p in parameters),
                    known.layer_saved_bytes[offset] if known else 0,
                    known.layer_output_bytes[offset] if known else 0,
                )
            )
    return facts


def warn_of_batch_norm(modules: Iterable[StageModule], micro_batches: int, *, stacklevel: int) -> None:
    """Say once which rule holds, where it differs from training on the whole batch."""
    names = [
        name
        for module in modules
        for name, layer in zip(module.names, module.layers, strict=True)
        if any(isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats for part in layer.modules())
    ]
    if names and micro_batches > 1:
        warnings.warn(
            f"batch normalisation in {', '.join(names[:3])}{' and others' if len(names) > 3 else ''} sees one micro-batch at a time, in "
            f"the order of the schedule: its statistics are those of {micro_batches} smaller batches, not of the whole one; "
            "use a layer or group norm if that matters",
            stacklevel=stacklevel + 1,
        )
