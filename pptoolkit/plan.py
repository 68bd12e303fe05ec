"""The plan: everything that decides how a model is cut and scheduled, as a TOML file that a person can read and edit."""

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import tomli_w

from pptoolkit.errors import PlanError, counted

PLAN_VERSION = 1
_TOP_KEYS = {"version", "cuts", "schedule", "micro_batches", "replicas", "recompute", "fingerprint", "origin", "prediction"}


def fingerprint_layers(signatures: Sequence[str]) -> str:
    """Return 16 hexadecimal digits that change with any layer's name, kind, arguments or place in the list."""
    return hashlib.sha256("\n".join(signatures).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the planner expects of a plan. Times in seconds; the interval holds 95 % of the expected outcomes."""

    step_time_s: float
    low_s: float
    high_s: float
    bubble_ratio: float
    baseline_step_time_s: float  # measured step time of the run that the plan came from


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which run and which measurements a plan came from."""

    run: str
    samples: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a model is cut and scheduled.

    Args:
        cuts: Index of the layer that begins each later stage, increasing; ``(3, 7)`` makes three stages.
        schedule: Name of a schedule, e.g. ``"1f1b"`` or ``"gpipe"``, or the path of a CSV file.
        micro_batches: Micro-batches per step.
        replicas: Data-parallel copies of the whole pipeline.
        recompute: Stages that recompute their activations in the backward pass.
        fingerprint: :func:`fingerprint_layers` of the model that the plan was made for; empty: not bound to one.
    """

    cuts: tuple[int, ...] = ()
    schedule: str = "1f1b"
    micro_batches: int = 1
    replicas: int = 1
    recompute: tuple[int, ...] = ()
    fingerprint: str = ""
    origin: Origin | None = None
    prediction: Prediction | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cuts", tuple(self.cuts))
        object.__setattr__(self, "recompute", tuple(self.recompute))
        for name, value in (("micro_batches", self.micro_batches), ("replicas", self.replicas)):
            if not _is_int(value) or value < 1:
                raise PlanError(f"{name}={value!r} in the plan is not a whole number of at least 1; set {name} to 1 or more")
        for name, values in (("cuts", self.cuts), ("recompute", self.recompute)):
            if not all(_is_int(v) for v in values):
                raise PlanError(f"{name}={list(values)} in the plan must be whole numbers; write e.g. {name} = [3, 7]")
        if not isinstance(self.schedule, str) or not self.schedule:
            raise PlanError(f"schedule={self.schedule!r} in the plan must be a name such as '1f1b' or 'gpipe'")

    @property
    def stages(self) -> int:
        return len(self.cuts) + 1

    def stage_layers(self, layers: int) -> tuple[range, ...]:
        """Return the layer indices of each stage, for a model of ``layers`` layers.

        Raises:
            PlanError: If the cuts are out of order or out of range, or leave a stage empty.
        """
        self.check(layers)
        edges = (0, *self.cuts, layers)
        return tuple(range(a, b) for a, b in pairwise(edges))

    def check(self, layers: int, *, fingerprint: str | None = None) -> None:
        """Refuse a plan that does not fit a model of ``layers`` layers.

        Raises:
            PlanError: Naming the cut, the number of layers and what to write instead.
        """
        if self.stages > layers:
            raise PlanError(
                f"cuts={list(self.cuts)} make {self.stages} stages, but the model has {counted(layers, 'layer')}; "
                f"use at most {counted(layers - 1, 'cut point')}"
            )
        for before, cut in zip((0, *self.cuts), self.cuts, strict=False):
            if not 0 < cut < layers:
                raise PlanError(
                    f"cut point {cut} in cuts={list(self.cuts)} is out of range; the model has {layers} layers, so use 1 to {layers - 1}"
                )
            if cut <= before:
                raise PlanError(
                    f"cut point {cut} in cuts={list(self.cuts)} does not come after {before}, "
                    "which would leave a stage empty; use increasing cut points"
                )
        for stage in self.recompute:
            if not 0 <= stage < self.stages:
                raise PlanError(f"recompute={list(self.recompute)} names stage {stage}, but the plan has stages 0 to {self.stages - 1}")
        if fingerprint is not None and self.fingerprint and self.fingerprint != fingerprint:
            raise PlanError(
                f"the plan was made for another model (fingerprint {self.fingerprint}, this model has {fingerprint}); "
                "run suggest on a run of this model, or remove the line 'fingerprint' to apply the cuts all the same"
            )

    def pipeline_ranks(self, ranks: int) -> int:
        """Return how many of ``ranks`` processes run one replica.

        Raises:
            PlanError: If the replicas do not divide the ranks.
        """
        if ranks % self.replicas:
            more = -(-ranks // self.replicas) * self.replicas
            raise PlanError(
                f"replicas={self.replicas} in the plan do not divide {counted(ranks, 'rank')}; "
                f"start {counted(more, 'rank')}, or set replicas to a divisor of {ranks}"
            )
        return ranks // self.replicas

    def evolve(self, **changes: Any) -> "Plan":
        """Return a copy with ``changes``; what no longer holds (prediction) must be passed anew."""
        return replace(self, **{"prediction": None, **changes})

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "version": PLAN_VERSION,
            "cuts": list(self.cuts),
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "replicas": self.replicas,
        }
        if self.recompute:
            body["recompute"] = list(self.recompute)
        if self.fingerprint:
            body["fingerprint"] = self.fingerprint
        if self.origin is not None:
            body["origin"] = {"run": self.origin.run, "samples": self.origin.samples, "note": self.origin.note}
        if self.prediction is not None:
            p = self.prediction
            body["prediction"] = {
                "step_time_s": p.step_time_s,
                "low_s": p.low_s,
                "high_s": p.high_s,
                "bubble_ratio": p.bubble_ratio,
                "baseline_step_time_s": p.baseline_step_time_s,
            }
        return body

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the plan as TOML, replacing ``path`` in one step.

        Raises:
            PlanError: If the file cannot be written.
        """
        target = Path(path)
        partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text("# A pptoolkit plan: how the model is cut and scheduled. Edit freely.\n" + tomli_w.dumps(self.to_dict()))
            partial.replace(target)
        except OSError as error:
            partial.unlink(missing_ok=True) if partial.parent.is_dir() else None
            raise PlanError(f"cannot write the plan to {target}: {error.strerror or error}; choose a writable path with -o") from error
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read a plan from TOML.

        Raises:
            PlanError: If the file is missing, is not TOML, or has unknown or wrong entries.
        """
        try:
            body = tomllib.loads(Path(path).read_text())
        except FileNotFoundError as error:
            raise PlanError(f"there is no plan at {path}; write one with: pptoolkit apply RUN -o {path}") from error
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise PlanError(f"cannot read the plan {path}: {error}; it must be a TOML file as written by pptoolkit apply") from error
        return cls.from_dict(body, where=str(path))

    @classmethod
    def from_dict(cls, body: Mapping[str, Any], *, where: str = "plan") -> "Plan":
        """Build a plan from parsed TOML or JSON; ``where`` names the file in messages."""
        unknown = sorted(set(body) - _TOP_KEYS)
        if unknown:
            raise PlanError(f"unknown key {unknown[0]!r} in {where}; a plan knows {', '.join(sorted(_TOP_KEYS))}")
        version = body.get("version", PLAN_VERSION)
        if version != PLAN_VERSION:
            raise PlanError(
                f"{where} has plan version {version!r}, and this release reads version {PLAN_VERSION}; write it anew with pptoolkit apply"
            )
        fields = {k: body[k] for k in ("schedule", "micro_batches", "replicas", "fingerprint") if k in body}
        try:
            for name in ("cuts", "recompute"):
                if name in body:
                    fields[name] = tuple(body[name])
            origin = Origin(**body["origin"]) if "origin" in body else None
            prediction = Prediction(**body["prediction"]) if "prediction" in body else None
        except TypeError as error:
            raise PlanError(
                f"{where} has an entry of the wrong kind: {error}; compare it with a plan written by pptoolkit apply"
            ) from error
        try:
            return cls(**fields, origin=origin, prediction=prediction)
        except PlanError as error:
            raise PlanError(f"{where}: {error}") from None


def default_plan(layers: int, ranks: int) -> Plan:
    """Return the plan of a training that was given none: equal layer counts, 1F1B, two micro-batches per rank."""
    return Plan(cuts=equal_layer_cuts(layers, ranks), schedule="1f1b", micro_batches=max(1, 2 * ranks))


def equal_layer_cuts(layers: int, stages: int) -> tuple[int, ...]:
    """Return the cuts that give every stage the same number of layers, the first ones one more where it does not divide.

    Raises:
        PlanError: If there are more stages than layers.
    """
    if not 1 <= stages <= layers:
        raise PlanError(
            f"{stages} stages do not fit a model of {counted(layers, 'layer')}; use {'1 stage' if layers == 1 else f'1 to {layers} stages'}"
        )
    return tuple(s * (layers // stages) + min(s, layers % stages) for s in range(1, stages))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
