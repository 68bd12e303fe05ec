"""Suggestions as data: ranked plans with what they promise, or the reason why there are none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pptoolkit.errors import PlanError, RunError
from pptoolkit.plan import Plan
from pptoolkit.telemetry.json_files import replace_json

SUGGESTIONS_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChange:
    """One stage before and after; layers as (first, after the last), compute per micro-batch in seconds. None: no such stage."""

    stage: int
    layers_before: tuple[int, int] | None
    layers_after: tuple[int, int]
    compute_before_s: float | None
    compute_after_s: float

    def to_dict(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "layers_before": list(self.layers_before) if self.layers_before else None,
            "layers_after": list(self.layers_after),
            "compute_before_s": self.compute_before_s,
            "compute_after_s": self.compute_after_s,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A plan that is expected to be faster.

    Args:
        plan: Ready to save: with fingerprint, origin and prediction.
        step_time_s: Predicted step time, with ``low_s`` and ``high_s`` around it.
        gain_ratio: 1 - predicted / measured step time, with ``gain_low_ratio`` and ``gain_high_ratio`` around it.
        bubble_ratio: Predicted.
        stages: Before and after, stage by stage.
        baselines: What other ways of cutting would give: name to predicted step time in seconds.
        sentence: What changes, for a person.
        memory_bytes: Predicted peak of each pipeline rank; empty where the run does not tell what its layers hold.
        binding: What keeps the plan from being faster still.
    """

    plan: Plan
    step_time_s: float
    low_s: float
    high_s: float
    gain_ratio: float
    gain_low_ratio: float
    gain_high_ratio: float
    bubble_ratio: float
    stages: tuple[StageChange, ...]
    baselines: Mapping[str, float]
    sentence: str
    memory_bytes: tuple[int, ...] = ()
    binding: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "plan": self.plan.to_dict(),
            "step_time_s": self.step_time_s,
            "low_s": self.low_s,
            "high_s": self.high_s,
            "gain_ratio": self.gain_ratio,
            "gain_low_ratio": self.gain_low_ratio,
            "gain_high_ratio": self.gain_high_ratio,
            "bubble_ratio": self.bubble_ratio,
            "stages": [stage.to_dict() for stage in self.stages],
            "baselines": dict(self.baselines),
            "sentence": self.sentence,
            "memory_bytes": list(self.memory_bytes),
            "binding": self.binding,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoChange:
    """The advice to leave the plan as it is.

    Args:
        reason: Why, and what to do if the reason is a lack of data.
        conclusive: True: the data say that nothing better is in sight. False: they do not suffice to say.
    """

    reason: str
    conclusive: bool

    def __str__(self) -> str:
        return self.reason

    def to_dict(self) -> dict[str, Any]:
        return {"reason": self.reason, "conclusive": self.conclusive}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestions:
    """The ranked suggestions of a run, best first; or none, and why. ``len()``, iteration and ``[0]`` go over the suggestions.

    Args:
        run_id: The run they come from.
        items: Best first.
        no_change: Set if and only if there are no items.
        step_time_s: Measured step time of the run; None without usable steps.
        replay_error_ratio: See :class:`~pptoolkit.planner.predict.Predictor`; None where no replay was possible.
        baselines: Predicted step times of other ways of cutting.
        is_profile: They come from a profile, and ``step_time_s`` is simulated.
    """

    run_id: str
    items: tuple[Suggestion, ...] = ()
    no_change: NoChange | None = None
    step_time_s: float | None = None
    replay_error_ratio: float | None = None
    baselines: Mapping[str, float] = field(default_factory=dict)
    is_profile: bool = False

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self.items)

    def __getitem__(self, index: int) -> Suggestion:
        if not self.items:
            reason = self.no_change.reason if self.no_change else "nothing was suggested"
            raise PlanError(f"there is no suggestion to take for run {self.run_id}: {reason}")
        return self.items[index]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form that suggestions.json holds."""
        return {
            "version": SUGGESTIONS_VERSION,
            "run_id": self.run_id,
            "step_time_s": self.step_time_s,
            "replay_error_ratio": self.replay_error_ratio,
            "suggestions": [item.to_dict() for item in self.items],
            "no_change": self.no_change.to_dict() if self.no_change else None,
            "baselines": dict(self.baselines),
            "is_profile": self.is_profile,
        }

    def save(self, path: Path) -> None:
        """Write the suggestions as JSON, replacing ``path`` in one step.

        Raises:
            RunError: If the file cannot be written.
        """
        try:
            replace_json(path, self.to_dict())
        except OSError as error:
            raise RunError(f"cannot write the suggestions to {path}: {error.strerror or error}; make the run directory writable") from error
