"""Compare two runs: which is faster and by how much, whether the prediction held, whether training stayed the same."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pandas as pd

from pptoolkit.analysis.accounting import account, pipeline_account
from pptoolkit.analysis.bubbles import compute_per_step
from pptoolkit.analysis.segments import info_of
from pptoolkit.analysis.statistics import Interval, difference_interval
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.errors import RunError
from pptoolkit.plan import Prediction
from pptoolkit.telemetry.run_info import RunInfo

COMPARISON_VERSION = 1
MOST_DIGITS = 16  # of a float64


class MeasuredRun(Protocol):
    """What a comparison reads of a run; :class:`pptoolkit.run.Run` is one."""

    @property
    def info(self) -> RunInfo: ...

    def steady(self) -> SteadySteps: ...

    def scalars(self) -> pd.DataFrame: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSide:
    """One of the two runs."""

    run_id: str
    cuts: tuple[int, ...]
    schedule: str
    micro_batches: int
    step_time: Interval

    def to_dict(self) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "cuts": list(self.cuts),
            "schedule": self.schedule,
            "micro_batches": self.micro_batches,
            "step_time_s": self.step_time.to_dict(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """Predicted beside achieved.

    Args:
        predicted: What the plan promised.
        achieved: The measured step time.
        error_ratio: Achieved over predicted, less 1: positive when the run is slower than promised.
        within: Whether the achieved median lies in the predicted interval.
        predicted_gain_ratio: 1 - predicted / measured step time of the run that the plan came from.
        origin: That run.
    """

    predicted: Prediction
    achieved: Interval
    error_ratio: float
    within: bool
    predicted_gain_ratio: float
    origin: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "predicted_s": self.predicted.step_time_s,
            "predicted_low_s": self.predicted.low_s,
            "predicted_high_s": self.predicted.high_s,
            "baseline_step_time_s": self.predicted.baseline_step_time_s,
            "achieved_s": self.achieved.to_dict(),
            "error_ratio": self.error_ratio,
            "within": self.within,
            "predicted_gain_ratio": self.predicted_gain_ratio,
            "origin": self.origin,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LossComparison:
    """The losses of the steps that both runs have.

    Args:
        steps: How many steps were compared.
        max_relative_difference: Largest difference over the larger of the two losses; infinite where only one is a number.
        worst_step: Where that is.
        equal_digits: Significant digits to which every loss agrees, 0 to 16.
    """

    steps: int
    max_relative_difference: float
    worst_step: int
    equal_digits: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "max_relative_difference": self.max_relative_difference,
            "worst_step": self.worst_step,
            "equal_digits": self.equal_digits,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs side by side.

    Args:
        difference_s: Step time of ``after`` less that of ``before``, with a 95 % interval.
        gain_ratio: 1 - after / before.
        is_significant: Whether the difference's interval leaves out 0.
        compute_ratio: Compute of all ranks in a step, after over before. Cuts move compute and do not change it: far from 1 means that the
            machines were slower or faster the second time, or that the models or micro-batches differ.
        same_model: Whether both runs have the same layers. If not, no other number here tells about the machine or the plan alone.
        prediction: Of the second run's plan; None if it made none.
        losses: None where the runs have no step with a loss in common.
        accounting: State to seconds a step, mean over ranks: before, after, difference.
    """

    before: RunSide
    after: RunSide
    difference_s: Interval
    gain_ratio: float
    is_significant: bool
    compute_ratio: float
    same_model: bool
    prediction: PredictionCheck | None
    losses: LossComparison | None
    accounting: dict[str, tuple[float, float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form."""
        return {
            "version": COMPARISON_VERSION,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "difference_s": self.difference_s.to_dict(),
            "gain_ratio": self.gain_ratio,
            "is_significant": self.is_significant,
            "compute_ratio": self.compute_ratio,
            "same_model": self.same_model,
            "prediction": self.prediction.to_dict() if self.prediction else None,
            "losses": self.losses.to_dict() if self.losses else None,
            "accounting": {s: {"before_s": a, "after_s": b, "difference_s": d} for s, (a, b, d) in self.accounting.items()},
        }


def compare(before: MeasuredRun, after: MeasuredRun) -> Comparison:
    """Compare two runs by their usable steps.

    Raises:
        RunError: If one of them has no usable step.
    """
    first, second = before.steady(), after.steady()
    sides = [_side(run, steady) for run, steady in ((before, first), (after, second))]
    difference = difference_interval(first.step_times_s, second.step_times_s)
    accounts = [pipeline_account(account(steady)) for steady in (first, second)]
    return Comparison(
        before=sides[0],
        after=sides[1],
        difference_s=difference,
        gain_ratio=1.0 - sides[1].step_time.median / sides[0].step_time.median,
        is_significant=difference.low > 0 or difference.high < 0,
        compute_ratio=_compute_s(second) / _compute_s(first),
        same_model=before.info.runs_same_model(after.info),
        prediction=check_prediction(info_of(after.info, second), sides[1].step_time),
        losses=compare_losses(before.scalars(), after.scalars()),
        accounting={state: (seconds, accounts[1][state], accounts[1][state] - seconds) for state, seconds in accounts[0].items()},
    )


def check_prediction(info: RunInfo, achieved: Interval) -> PredictionCheck | None:
    """Return what the run's plan promised beside what the run achieved, or None if it promised nothing."""
    plan = info.read_plan()
    predicted = plan.prediction
    if predicted is None:
        return None
    return PredictionCheck(
        predicted=predicted,
        achieved=achieved,
        error_ratio=achieved.median / predicted.step_time_s - 1.0,
        within=predicted.low_s <= achieved.median <= predicted.high_s,
        predicted_gain_ratio=1.0 - predicted.step_time_s / predicted.baseline_step_time_s,
        origin=plan.origin.run if plan.origin else "",
    )


def losses_by_step(scalars: pd.DataFrame) -> "pd.Series[float]":
    """Return the loss of each step that has one: of the latest attempt that ran it, the mean over the replicas."""
    rows = scalars[scalars["loss"].notna()]
    if rows.empty:
        return pd.Series(dtype=float)
    latest = rows[rows["attempt"] == rows.groupby("step")["attempt"].transform("max")]
    return latest.groupby("step")["loss"].mean()


def compare_losses(before: pd.DataFrame, after: pd.DataFrame) -> LossComparison | None:
    """Return how far the losses of two runs agree, step by step; None without a common step."""
    first, second = losses_by_step(before), losses_by_step(after)
    both = sorted(set(first.index) & set(second.index))
    if not both:
        return None
    differences = [(_relative_difference(float(first[step]), float(second[step])), int(step)) for step in both]
    worst, step = max(differences, key=lambda pair: pair[0])
    digits = MOST_DIGITS if worst == 0 else 0 if worst >= 1 else min(MOST_DIGITS, math.floor(-math.log10(worst)))
    return LossComparison(steps=len(both), max_relative_difference=worst, worst_step=step, equal_digits=digits)


def _compute_s(steady: SteadySteps) -> float:
    return float(np.median(compute_per_step(steady).to_numpy().sum(axis=1)))


def _relative_difference(a: float, b: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    difference = abs(a - b) / max(abs(a), abs(b))
    return difference if math.isfinite(difference) else math.inf


def _side(run: MeasuredRun, steady: SteadySteps) -> RunSide:
    info, step_time = info_of(run.info, steady), steady.step_time
    if step_time is None:
        raise RunError(
            f"run {info.run_id} has no complete step after its first use, so there is nothing to compare; train a few more steps"
        )
    return RunSide(
        run_id=info.run_id, cuts=info.read_plan().cuts, schedule=info.schedule, micro_batches=info.micro_batches, step_time=step_time
    )
