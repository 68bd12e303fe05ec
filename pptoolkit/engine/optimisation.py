"""What a user may turn about optimisation: clipping, accumulation, precision, groups, frozen layers, recompute."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import torch

from pptoolkit.errors import ConfigError

OptimizerFactory = Callable[[Any], torch.optim.Optimizer]  # from parameters, or from groups of them with options
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Precision(StrEnum):
    """In which type the layers compute. Parameters, gradients and optimizer keep their own."""

    FULL = "full"
    BF16 = "bf16"
    FP16 = "fp16"


class Replication(StrEnum):
    """How replicas stay equal."""

    DDP = "ddp"  # every replica holds all parameters; gradients are summed once per step
    FSDP = "fsdp"  # parameters, gradients and optimizer state are sharded over the replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """Dynamic loss scaling: small gradients of float16 survive, and a step that overflows is skipped by all ranks.

    Args:
        initial: First factor.
        growth: Factor after ``interval`` steps in a row without overflow.
        backoff: Factor after an overflow.
        interval: See ``growth``.
    """

    initial: float = 2.0**16
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        if not (self.initial > 0 and self.growth >= 1 and 0 < self.backoff < 1 and self.interval >= 1):
            raise ConfigError(f"{self} cannot work; use initial > 0, growth >= 1, 0 < backoff < 1 and interval >= 1")


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Options of the optimizer for the parameters whose name fits a pattern.

    Args:
        patterns: Shell patterns of global parameter names such as ``"*.bias"`` or ``"block0?.*"``.
        options: What the optimizer takes per group, e.g. ``{"weight_decay": 0.0}``.
    """

    patterns: tuple[str, ...]
    options: Mapping[str, Any]

    def __post_init__(self) -> None:
        object.__setattr__(self, "patterns", as_patterns(self.patterns))
        if "params" in self.options:
            raise ConfigError("a ParameterGroup's options hold 'params'; the patterns choose the parameters, so leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimisation:
    """How gradients become steps. The default is plain training.

    Args:
        clip_norm: Largest norm of all gradients of all stages together; ``inf`` reports the norm and clips nothing.
        accumulation: Pipeline steps whose gradients make one step of the optimizer.
        precision: ``"full"``, ``"bf16"`` or ``"fp16"``: autocast inside the pipeline. ``"fp16"`` scales the loss.
        loss_scale: How the loss is scaled; None: only with ``"fp16"``, by the defaults of :class:`LossScale`.
        learning_rate: ``step -> factor`` of the optimizer's own learning rate.
        scheduler: Makes a torch learning-rate scheduler from the optimizer; stepped once per step that was not skipped.
        groups: The first group that fits a parameter takes it; the rest keeps the optimizer's defaults.
        frozen: Patterns of layer or parameter names that do not train.
        recompute: Patterns of layer names that keep no activations and run again in the backward pass. A plan's
            ``recompute`` does the same for all layers of a stage.
        compile: Compile each layer with ``torch.compile``. Not with schedules that split the backward pass.
        replication: ``"ddp"`` or ``"fsdp"``: how replicas stay equal.
    """

    clip_norm: float | None = None
    accumulation: int = 1
    precision: Precision | str = Precision.FULL
    loss_scale: LossScale | None = None
    learning_rate: Callable[[int], float] | None = None
    scheduler: SchedulerFactory | None = None
    groups: tuple[ParameterGroup, ...] = ()
    frozen: tuple[str, ...] = ()
    recompute: tuple[str, ...] = ()
    compile: bool = False
    replication: Replication | str = field(default=Replication.DDP)

    def __post_init__(self) -> None:
        for name, kind in (("precision", Precision), ("replication", Replication)):
            object.__setattr__(self, name, _member(kind, name, getattr(self, name)))
        for name in ("frozen", "recompute"):
            object.__setattr__(self, name, as_patterns(getattr(self, name)))
        object.__setattr__(self, "groups", tuple(self.groups))
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ConfigError(f"clip_norm={self.clip_norm} is out of range; use a number above 0, or None for no clipping")
        if isinstance(self.accumulation, bool) or not isinstance(self.accumulation, int) or self.accumulation < 1:
            raise ConfigError(f"accumulation={self.accumulation!r} is out of range; use a whole number of at least 1")
        if self.learning_rate is not None and self.scheduler is not None:
            raise ConfigError("learning_rate= and scheduler= both set the learning rate; pass one of them")
        if self.loss_scale is None and self.precision is Precision.FP16:
            object.__setattr__(self, "loss_scale", LossScale())


def as_patterns(patterns: str | Iterable[str]) -> tuple[str, ...]:
    """Return patterns as a tuple; a single text is one pattern, not one for each letter."""
    return (patterns,) if isinstance(patterns, str) else tuple(patterns)


def fits(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a layer or parameter name fits one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(option: str, patterns: Iterable[str], names: Iterable[str]) -> None:
    """Refuse a pattern that fits nothing: most likely a misspelt one.

    Raises:
        ConfigError: Naming the pattern and some of the names.
    """
    known = sorted(set(names))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            some = ", ".join(known[:6]) + (", ..." if len(known) > 6 else "")
            raise ConfigError(f"{option}: the pattern {pattern!r} fits no name; the model has {some}")


def _member(kind: type[StrEnum], name: str, value: str) -> StrEnum:
    try:
        return kind(value)
    except ValueError:
        raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(repr(str(m)) for m in kind)}") from None
