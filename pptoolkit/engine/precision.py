"""Autocast inside the pipeline: around the layers of a stage and around the loss, never around the schedule.

A context around the whole step would reach the backward pass too, and an autocast that ends between forward and
backward is what a pipeline otherwise has no place for.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.optimisation import LossScale, Precision
from pptoolkit.errors import ConfigError

_TYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


def compute_type(precision: Precision, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context in which layers compute."""
    dtype = _TYPES.get(precision)
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def compute_in(precision: Precision, module: nn.Module, device: torch.device) -> None:
    """Let the forward of ``module`` run under autocast; shape inference, which calls it too, then sees the same types."""
    if precision is Precision.FULL:
        return
    forward = module.forward

    def in_type(*inputs: Any, **named: Any) -> Any:
        with compute_type(precision, device):
            return forward(*inputs, **named)

    module.forward = in_type


def check_precision(precision: Precision, parameters: Iterable[nn.Parameter]) -> None:
    """Refuse an autocast that would do nothing.

    Raises:
        ConfigError: If a parameter is of a type that autocast leaves alone.
    """
    if precision is not Precision.FULL and any(p.dtype is torch.float64 for p in parameters):
        raise ConfigError(f"precision={str(precision)!r} has no effect on float64 parameters; use float32 parameters, or precision='full'")


class DynamicScale:
    """The factor of the loss. Every rank computes the same one, because all decide on the same global norm."""

    def __init__(self, settings: LossScale | None) -> None:
        self._settings = settings
        self.factor = settings.initial if settings is not None else 1.0
        self._good_steps = 0

    @property
    def active(self) -> bool:
        return self._settings is not None

    def overflowed(self) -> None:
        """Lower the factor after a step whose gradients were not finite."""
        assert self._settings is not None
        self.factor *= self._settings.backoff
        self._good_steps = 0

    def went_well(self) -> None:
        """Count a good step; after enough of them in a row, raise the factor."""
        if self._settings is None:
            return
        self._good_steps += 1
        if self._good_steps >= self._settings.interval:
            self.factor *= self._settings.growth
            self._good_steps = 0

    def state_dict(self) -> dict[str, float]:
        return {"factor": self.factor, "good_steps": float(self._good_steps)}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.factor, self._good_steps = state["factor"], int(state["good_steps"])
