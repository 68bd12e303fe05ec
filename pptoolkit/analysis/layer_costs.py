"""What each layer costs: from the layers timed on sampled micro-batches to costs that add up to what the stages really took.

Timing single layers slows an op a little. So the samples decide how a stage's time is shared among its layers, and the ops
whose layers were not timed decide how much there is to share. The loss is timed with the last layer and belongs to it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from pptoolkit.analysis.grouping import duration_s, groups_of
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.run_info import RunInfo

_NOTHING = Interval(median=0.0, low=0.0, high=0.0, samples=0)
FORWARD_OPS = (int(Op.FORWARD),)
_PARTS = (int(Op.BACKWARD_INPUT), int(Op.BACKWARD_WEIGHT))
BACKWARD_OPS = (int(Op.BACKWARD), *_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCost:
    """One layer's times per micro-batch in seconds and sizes in bytes.

    Args:
        boundary_bytes: What crosses a cut right after this layer, per micro-batch.
    """

    layer: int
    name: str
    forward: Interval
    backward: Interval
    parameter_bytes: int = 0
    activation_bytes: int = 0
    boundary_bytes: int = 0

    @property
    def compute_s(self) -> float:
        return self.forward.median + self.backward.median


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """The costs of all layers, in model order.

    Args:
        layers: One cost a layer; zero where nothing was measured.
        missing: What was not measured, one sentence each with its remedy; planning needs this to be empty.
        calibration: Per stage, (forward, backward): unsampled stage time over the sum of its layers' samples.
    """

    layers: tuple[LayerCost, ...]
    missing: tuple[str, ...] = ()
    calibration: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @property
    def compute_s(self) -> tuple[float, ...]:
        """Forward plus backward of each layer, per micro-batch."""
        return tuple(layer.compute_s for layer in self.layers)

    @property
    def samples(self) -> int:
        """The number of samples of the least sampled layer."""
        return min((layer.forward.samples for layer in self.layers), default=0)

    def stage_half_width_s(self, layers: Sequence[int]) -> float:
        """Return the uncertainty of these layers' compute together, taking their errors as independent."""
        chosen = [self.layers[i] for i in layers]
        return float(np.sqrt(sum(c.forward.half_width**2 + c.backward.half_width**2 for c in chosen)))


def stage_op_medians(steady: SteadySteps, codes: tuple[int, ...]) -> dict[int, float]:
    """Return the median seconds of a micro-batch's pass in each stage, from the ops whose layers were not timed.

    A stage all of whose ops had their layers timed is taken as it is.

    Args:
        steady: The usable steps.
        codes: Op codes that together make the pass, e.g. :data:`BACKWARD_OPS`.
    """
    medians: dict[int, float] = {}
    for (stage,), rows in groups_of(_passes(steady, codes), "stage"):
        unmarked = rows[(rows["flags"] & int(Flag.SAMPLED)) == 0]
        medians[stage] = float((unmarked if len(unmarked) else rows)["seconds"].median())
    return medians


def _passes(steady: SteadySteps, codes: tuple[int, ...]) -> pd.DataFrame:
    """Return one row per rank, step and micro-batch: stage, step, flags, seconds; I and W of one backward are one pass."""
    ops = steady.events[steady.events["op"].isin(codes)]
    rows = ops[["rank", "step", "stage", "micro_batch", "flags"]].assign(seconds=duration_s(ops))
    apart = ops["op"].isin(_PARTS)
    if not apart.any():
        return rows
    # A schedule may split some of its backwards and run the others whole.
    joined = (
        rows[apart]
        .groupby(["rank", "step", "stage", "micro_batch"], as_index=False)
        .agg(flags=("flags", "max"), seconds=("seconds", "sum"))
    )
    return pd.concat([rows[~apart], joined], ignore_index=True)


def mean_over_median(steady: SteadySteps) -> float:
    """Return how much longer ops take on average than in the median, all stages together; 1 without ops.

    The parts of a step add up, and medians of skewed times do not add up to the median of their sum: a few late ops are part of every step.
    The mean is taken per step and its median over the steps, so that single broken steps do not count. One ratio for all stages, because
    which rank was hit by how many late ops is chance, and must not look like work.
    """
    means = medians = 0.0
    for codes in (FORWARD_OPS, BACKWARD_OPS):
        for _, rows in groups_of(_passes(steady, codes), "stage"):
            means += float(rows.groupby("step")["seconds"].mean().median())
        medians += sum(stage_op_medians(steady, codes).values())
    return means / medians if medians > 0 else 1.0


def measure_layer_costs(steady: SteadySteps, info: RunInfo) -> LayerCosts:
    """Return the layer costs of a run's usable steps.

    Args:
        steady: The usable steps.
        info: The run: its plan (which stage owns which layer), layer names and facts.
    """
    stages = info.read_plan().stage_layers(len(info.layers))
    passes = {
        "forward": (_samples(steady, Op.LAYER_FORWARD), stage_op_medians(steady, FORWARD_OPS)),
        "backward": (_samples(steady, Op.LAYER_BACKWARD), stage_op_medians(steady, BACKWARD_OPS)),
    }
    facts = {fact.name: fact for fact in info.layer_facts}
    found: dict[str, list[Interval]] = {"forward": [], "backward": []}
    factors: dict[str, list[float]] = {"forward": [], "backward": []}
    missing: list[str] = []
    for stage, layers in enumerate(stages):
        for name, (samples, medians) in passes.items():
            intervals, factor, lacking = _calibrate(layers, samples, medians.get(stage, 0.0))
            found[name] += intervals
            factors[name].append(factor)
            if lacking:
                missing.append(_what_is_missing(name, stage, [info.layers[i] for i in lacking]))
    costs = tuple(
        LayerCost(
            layer=i,
            name=name,
            forward=found["forward"][i],
            backward=found["backward"][i],
            parameter_bytes=facts[name].parameter_bytes if name in facts else 0,
            activation_bytes=facts[name].activation_bytes if name in facts else 0,
            boundary_bytes=facts[name].boundary_bytes if name in facts else 0,
        )
        for i, name in enumerate(info.layers)
    )
    calibration = dict(enumerate(zip(factors["forward"], factors["backward"], strict=True)))
    return LayerCosts(layers=costs, missing=tuple(missing), calibration=calibration)


def _samples(steady: SteadySteps, op: Op) -> dict[int, Interval]:
    rows = steady.events[steady.events["op"] == int(op)]
    return {layer: interval_of(duration_s(group).to_numpy()) for (layer,), group in groups_of(rows, "peer")}


def _calibrate(layers: Sequence[int], samples: Mapping[int, Interval], stage_s: float) -> tuple[list[Interval], float, list[int]]:
    """Return the layers' intervals scaled so that their medians sum to ``stage_s``, the factor, and the layers without samples."""
    if stage_s <= 0 and not any(i in samples for i in layers):
        return [_NOTHING] * len(layers), 1.0, []  # a stage without this pass, e.g. frozen: its cost is known, and it is nothing
    lacking = [i for i in layers if i not in samples]
    if lacking and len(layers) == 1 and stage_s > 0:
        return [Interval(median=stage_s, low=stage_s, high=stage_s, samples=0)], 1.0, []  # the stage's time is its only layer's
    total = sum(samples[i].median for i in layers if i in samples)
    factor = stage_s / total if total > 0 and stage_s > 0 else 1.0
    return [samples[i].scaled(factor) if i in samples else _NOTHING for i in layers], factor, lacking


def _what_is_missing(name: str, stage: int, layers: Sequence[str]) -> str:
    shown = ", ".join(layers[:3]) + (f" and {len(layers) - 3} more" if len(layers) > 3 else "")
    return f"the {name} of {shown} (stage {stage}) was never timed alone; train some more steps, with layer sampling on"
