"""From a job file's ``[training]`` to the settings of a trainer."""

from pptoolkit.config import RunConfig
from pptoolkit.engine.learning_rate import WarmupDecay
from pptoolkit.engine.optimisation import Optimisation, ParameterGroup


def make_optimisation(config: RunConfig) -> Optimisation:
    """Return what ``[training]`` says about optimisation.

    Raises:
        ConfigError: If keys do not go together.
    """
    training = config.training
    rate = None
    if training.warmup_steps or training.decay != "constant":
        rate = WarmupDecay(steps=training.steps, warmup_steps=training.warmup_steps, decay=training.decay, final_ratio=training.final_ratio)
    groups = (ParameterGroup(tuple(training.no_decay), {"weight_decay": 0.0}),) if training.no_decay else ()
    return Optimisation(
        clip_norm=training.clip_norm,
        accumulation=training.accumulation,
        precision=training.precision,
        learning_rate=rate,
        groups=groups,
        frozen=tuple(training.frozen),
        recompute=tuple(training.recompute),
        compile=training.compile,
        replication=training.replication,
    )
