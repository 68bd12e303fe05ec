"""Pipeline-parallel training with built-in telemetry: see the bubbles, find the bottleneck, apply better cuts.

    import pptoolkit as pp

    trainer = pp.Trainer(layers, loss=..., optimizer=..., plan=pp.Plan(cuts=[4], micro_batches=8), run="runs/mine")
    trainer.fit(dataset, batch_size=64, steps=200)      # started with torchrun, one process per stage
    run = pp.Run.open("runs/mine")                      # needs no torch
    run.report(); run.suggest()[0].plan.save("plan.toml")

Errors are listed in :mod:`pptoolkit.errors`.
"""

import importlib
from typing import TYPE_CHECKING

from pptoolkit.plan import Plan
from pptoolkit.planner.rebalance import AutoRebalance
from pptoolkit.run import Run
from pptoolkit.telemetry.settings import TelemetrySettings

if TYPE_CHECKING:
    from pptoolkit.engine.layers import Layer
    from pptoolkit.engine.loss import WeightedLoss
    from pptoolkit.engine.micro_batch import MicroBatches
    from pptoolkit.engine.optimisation import LossScale, Optimisation, ParameterGroup
    from pptoolkit.job import Job
    from pptoolkit.trainer import FitResult, Trainer
    from pptoolkit.verification import Verification, verify

__all__ = [
    "AutoRebalance",
    "FitResult",
    "Job",
    "Layer",
    "LossScale",
    "MicroBatches",
    "Optimisation",
    "ParameterGroup",
    "Plan",
    "Run",
    "TelemetrySettings",
    "Trainer",
    "Verification",
    "WeightedLoss",
    "verify",
]

# What needs torch is imported when it is asked for, so that reading a run works without it.
_WITH_TORCH = {
    "FitResult": "pptoolkit.trainer",
    "Job": "pptoolkit.job",
    "Layer": "pptoolkit.engine.layers",
    "LossScale": "pptoolkit.engine.optimisation",
    "MicroBatches": "pptoolkit.engine.micro_batch",
    "Optimisation": "pptoolkit.engine.optimisation",
    "ParameterGroup": "pptoolkit.engine.optimisation",
    "Trainer": "pptoolkit.trainer",
    "Verification": "pptoolkit.verification",
    "WeightedLoss": "pptoolkit.engine.loss",
    "verify": "pptoolkit.verification",
}


def __getattr__(name: str) -> object:
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'pptoolkit' has no attribute {name!r}")
