"""Learning rates as pure functions of the step: every rank has the same one, and a resumed run needs nothing but its step."""

import math
from dataclasses import dataclass
from enum import StrEnum

from pptoolkit.errors import ConfigError, counted


class Decay(StrEnum):
    """How the learning rate falls after the warm-up."""

    CONSTANT = "constant"
    COSINE = "cosine"
    LINEAR = "linear"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmupDecay:
    """``step -> factor``: rises in a line to 1, then falls to ``final_ratio`` at the last step.

    Args:
        steps: Steps of the whole run.
        warmup_steps: Steps until the factor is 1.
        decay: ``"constant"``, ``"cosine"`` (Loshchilov and Hutter, 2017) or ``"linear"``.
        final_ratio: Factor at the end, in [0, 1].
    """

    steps: int
    warmup_steps: int = 0
    decay: Decay | str = Decay.COSINE
    final_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.decay not in list(Decay):
            raise ConfigError(f"decay={self.decay!r} is unknown; use one of {', '.join(repr(str(d)) for d in Decay)}")
        if not 0 <= self.warmup_steps < self.steps:
            raise ConfigError(
                f"warmup_steps={self.warmup_steps} do not fit a run of {counted(self.steps, 'step')}; "
                f"use 0 to {self.steps - 1} warmup_steps, or train longer"
            )
        if not 0 <= self.final_ratio <= 1:
            raise ConfigError(f"final_ratio={self.final_ratio} is out of range; use 0 to 1")

    def __call__(self, step: int) -> float:
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.decay == Decay.CONSTANT:
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, self.steps - 1 - self.warmup_steps))
        falling = (1 + math.cos(math.pi * done)) / 2 if self.decay == Decay.COSINE else 1 - done
        return self.final_ratio + (1 - self.final_ratio) * falling
