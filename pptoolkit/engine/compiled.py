"""``torch.compile`` layer by layer: a layer is what runs as one piece, with its own random seed before it."""

from typing import Any

import torch
from torch import nn

from pptoolkit.engine import torch_private
from pptoolkit.errors import ConfigError
from pptoolkit.schedule import ActionKind, Schedule


def compile_layer(layer: nn.Module) -> None:
    """Compile the forward of ``layer``; shape inference goes on with the layer as it was written."""
    plain = layer.forward
    compiled = torch.compile(plain)

    def forward(*inputs: Any, **named: Any) -> Any:
        run = plain if torch_private.shapes_only() else compiled
        return run(*inputs, **named)

    layer.forward = forward


def splits_backward(schedule: Schedule) -> bool:
    """Return whether the schedule computes input gradients and weight gradients apart."""
    return any(action.kind is ActionKind.BACKWARD_INPUT for order in schedule.orders for action in order)


def check_compile(schedule: Schedule) -> None:
    """Refuse schedules under which a compiled layer cannot run.

    Raises:
        ConfigError: If the schedule splits the backward pass.
    """
    if splits_backward(schedule):
        raise ConfigError(
            f"compile=True does not work with schedule {schedule.name!r}, which splits the backward pass: a compiled layer has one "
            "backward for inputs and weights together; use schedule '1f1b' or 'interleaved-1f1b', or compile=False"
        )
