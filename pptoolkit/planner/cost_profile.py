"""The cost model: what each layer takes and holds for a micro-batch of any size, as measured before any pipeline runs.

A time is a line over the samples of a micro-batch, ``fixed_s + per_sample_s * samples``: what launching and Python cost, and what the
samples cost. Bytes of activations and borders follow the samples, those of parameters and optimizer state do not.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pptoolkit.analysis.layer_costs import LayerCost, LayerCosts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import ConfigError, PlanError
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.step_costs import MeasuredStep, RankSides
from pptoolkit.telemetry.json_files import replace_json

PROFILE_VERSION = 1
UNTRIED_ERROR = 0.10  # one process says nothing of links, of ranks that share caches and cores, or of the host between the ops


@dataclass(frozen=True, slots=True)
class CostLine:
    """``fixed_s + per_sample_s * samples``; ``spread`` is the half-width of a measurement as a ratio of it."""

    fixed_s: float
    per_sample_s: float
    spread: float = 0.0

    def at(self, samples: float) -> float:
        return self.fixed_s + self.per_sample_s * samples

    def interval_at(self, samples: float) -> Interval:
        value = self.at(samples)
        return Interval(median=value, low=value * (1 - self.spread), high=value * (1 + self.spread), samples=0)


def fit_line(samples: Sequence[float], seconds: Sequence[float], *, spread: float = 0.0) -> CostLine:
    """Return the line through measured points with the smallest squared relative error, neither part below 0.

    With a single size the fixed part cannot be told, and is 0.

    Raises:
        ValueError: If there are no points, or they differ in number.
    """
    if not samples or len(samples) != len(seconds):
        raise ValueError(f"{len(samples)} sizes and {len(seconds)} times make no line; give one time for each size")
    n, t = np.asarray(samples, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    weight = 1.0 / np.maximum(t, 1e-9)
    if len(set(samples)) > 1:
        (fixed, slope), *_ = np.linalg.lstsq(np.stack([weight, n * weight], axis=1), t * weight, rcond=None)
        if fixed >= 0 and slope >= 0:
            return CostLine(float(fixed), float(slope), spread)
        if slope < 0:
            return CostLine(float(np.average(t, weights=weight**2)), 0.0, spread)
    return CostLine(0.0, float((t * n * weight**2).sum() / (n**2 * weight**2).sum()), spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfile:
    """One layer. Backward is whole; its input part is what must run before the gradient goes on, the rest is for the weights.

    Args:
        optimizer_s: Of one optimizer step over the layer's parameters.
        optimizer_bytes: Of gradients and optimizer state.
        activation_bytes: Kept for the backward, per sample; ``boundary_bytes`` likewise, of its output.
    """

    name: str
    forward: CostLine
    backward: CostLine
    backward_input: CostLine
    optimizer_s: float
    parameter_bytes: int
    optimizer_bytes: int
    activation_bytes: float
    boundary_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """All layers of a model, in order.

    Args:
        name: What was profiled.
        fingerprint: Of the layer list.
        batch_size: Samples of a step, as configured.
        sizes: Micro-batch sizes that were measured.
        bandwidth: Bytes per second between ranks; 0: not known, and links are taken as free.
    """

    name: str
    fingerprint: str
    batch_size: int
    sizes: tuple[int, ...]
    layers: tuple[LayerProfile, ...]
    bandwidth: float = 0.0

    def measured_step(self, *, ranks: int, micro_batches: int, schedule: str = "1f1b") -> MeasuredStep:
        """Return what the planner plans from: the equal-layer cut on ``ranks`` ranks, as simulated.

        Raises:
            PlanError: If the micro-batches do not divide the batch, or the ranks do not fit the layers.
        """
        if self.batch_size % micro_batches:
            raise PlanError(f"{micro_batches} micro-batches do not divide the batch of {self.batch_size} samples; use a divisor")
        plan = Plan(
            cuts=equal_layer_cuts(len(self.layers), ranks), schedule=schedule, micro_batches=micro_batches, fingerprint=self.fingerprint
        )
        samples = self.batch_size / micro_batches
        backward = sum(layer.backward.at(samples) for layer in self.layers)
        parameters = sum(layer.parameter_bytes for layer in self.layers)
        measured = MeasuredStep(
            plan=plan,
            step_time=Interval(median=1.0, low=1.0, high=1.0, samples=0),
            step_sigma_s=0.0,
            layers=LayerCosts(layers=tuple(_cost(i, layer, samples) for i, layer in enumerate(self.layers))),
            mean_over_median=1.0,
            backward_input_share=sum(layer.backward_input.at(samples) for layer in self.layers) / backward if backward else 0.5,
            sides=tuple(
                RankSides(before_s=0.0, after_s=0.0, optimizer_s=sum(self.layers[i].optimizer_s for i in mine))
                for mine in plan.stage_layers(len(self.layers))
            ),
            transfer_s=self._transfers(plan, samples),
            send_s=0.0,
            action_overhead_s=0.0,
            joined_end=True,
            batch_samples=self.batch_size,
            fixed_shares=tuple((_fixed(layer.forward, samples), _fixed(layer.backward, samples)) for layer in self.layers),
            model_error=UNTRIED_ERROR,
            state_bytes_ratio=sum(layer.optimizer_bytes for layer in self.layers) / parameters if parameters else 0.0,
            bandwidth=self.bandwidth,
            is_profile=True,
        )
        replayed = Predictor(measured).replay_s
        return replace(measured, step_time=Interval(median=replayed, low=replayed, high=replayed, samples=0))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile as JSON.

        Raises:
            ConfigError: If it cannot be written.
        """
        target = Path(path)
        try:
            replace_json(target, {"version": PROFILE_VERSION, **asdict(self)})
        except OSError as error:
            raise ConfigError(f"cannot write the profile to {target}: {error.strerror or error}; choose a writable path with -o") from error
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "CostProfile":
        """Read a profile.

        Raises:
            ConfigError: If it is missing, or is no profile of this release.
        """
        try:
            body = json.loads(Path(path).read_text())
            if body.pop("version") != PROFILE_VERSION:
                raise ValueError(f"it is not of version {PROFILE_VERSION}")
            layers = tuple(_layer(row) for row in body.pop("layers"))
            return cls(**{**body, "sizes": tuple(body["sizes"])}, layers=layers)
        except FileNotFoundError as error:
            raise ConfigError(f"there is no profile at {path}; make one with: pptoolkit profile CONFIG -o {path}") from error
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no profile that this release reads ({error}); make it anew with: pptoolkit profile CONFIG"
            ) from error

    def _transfers(self, plan: Plan, samples: float) -> dict[tuple[int, int], float]:
        if not self.bandwidth:
            return {}
        seconds = [self.layers[mine[-1]].boundary_bytes * samples / self.bandwidth for mine in plan.stage_layers(len(self.layers))[:-1]]
        return {key: s for border, s in enumerate(seconds) for key in ((border, border + 1), (border + 1, border))}


def _cost(index: int, layer: LayerProfile, samples: float) -> LayerCost:
    return LayerCost(
        layer=index,
        name=layer.name,
        forward=layer.forward.interval_at(samples),
        backward=layer.backward.interval_at(samples),
        parameter_bytes=layer.parameter_bytes,
        activation_bytes=round(layer.activation_bytes * samples),
        boundary_bytes=round(layer.boundary_bytes * samples),
    )


def _fixed(line: CostLine, samples: float) -> float:
    return line.fixed_s / line.at(samples) if line.at(samples) > 0 else 0.0


def _layer(row: dict[str, Any]) -> LayerProfile:
    lines: dict[str, Any] = {name: CostLine(**row.pop(name)) for name in ("forward", "backward", "backward_input")}
    return LayerProfile(**row, **lines)
