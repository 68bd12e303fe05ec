"""The report: everything that is known about a run, as data. How it is shown is for others to decide."""

from dataclasses import dataclass
from typing import Any

import pandas as pd

from pptoolkit.analysis.accounting import RankAccount, account
from pptoolkit.analysis.attempt import AttemptAccount
from pptoolkit.analysis.bubbles import BubbleSummary, summarise_bubbles
from pptoolkit.analysis.causes import BubbleCauses
from pptoolkit.analysis.clocks import RankClock
from pptoolkit.analysis.critical_path import CriticalPath
from pptoolkit.analysis.diagnosis import Diagnosis
from pptoolkit.analysis.links import LinkMeasure
from pptoolkit.analysis.regime import RegimeChange
from pptoolkit.analysis.segments import Segment, segments_of
from pptoolkit.analysis.slowdown import Slowdown
from pptoolkit.analysis.stages import StageRow, equal_stages_bubble_ratio, stage_table
from pptoolkit.analysis.statistics import Interval
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.verdict import Verdict
from pptoolkit.planner.compare import PredictionCheck, check_prediction, losses_by_step
from pptoolkit.telemetry.run_info import RunInfo

REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run at one moment. Everything that needs usable steps is None or empty while there are none; ``missing`` says why.

    Args:
        state: waiting, running, stalled, finished, failed or stopped.
        message: What explains the state, e.g. the error of a failed run; may be empty.
        missing: What is not there (yet), one sentence each.
        device: Kind of device on which the ranks compute, ``"cpu"`` or ``"cuda"``; "" where run.json does not say.
        steps_done: Steps that every rank has finished, over all attempts.
        usable_steps: Steps behind the statistics.
        skipped_steps: Why others do not count: reason to number.
        loss: Last loss; None without one.
        step_time: Median step time, seconds.
        samples_per_s: Samples of all replicas per second; None if unknown.
        tokens_per_s: Tokens likewise.
        causes: The bubble by cause; None where the steps could not be replayed.
        slowdown: Against steps without stragglers; None as above.
        critical_path: Of a typical step; None as above.
        changes: Where a rank became slower or faster in the middle of the run.
        clock_uncertainty_s: Per rank that measured its offset to rank 0, the median over its readings.
        clocks: Offset, uncertainty and drift of those ranks.
        replay_error_ratio: Simulated over measured step time of this run, less 1; None if it could not be replayed.
        prediction: What the run's plan promised beside what came; None if it promised nothing.
        segments: Which plan held from which step on; one unless the run was cut anew while it trained.
    """

    run_id: str
    name: str
    state: str
    message: str
    missing: tuple[str, ...]
    parent: str | None
    plan: dict[str, Any]
    ranks: int
    replicas: int
    stages_count: int
    steps_asked: int
    steps_done: int
    usable_steps: int
    skipped_steps: dict[str, int]
    loss: float | None
    step_time: Interval | None
    samples_per_s: float | None
    tokens_per_s: float | None
    bubble: BubbleSummary | None
    accounting: tuple[RankAccount, ...]
    attempt: tuple[AttemptAccount, ...]
    stages: tuple[StageRow, ...]
    links: tuple[LinkMeasure, ...]
    verdict: Verdict | None
    replay_error_ratio: float | None
    prediction: PredictionCheck | None
    clock_uncertainty_s: dict[int, float]
    clocks: tuple[RankClock, ...]
    causes: BubbleCauses | None = None
    slowdown: Slowdown | None = None
    critical_path: CriticalPath | None = None
    changes: tuple[RegimeChange, ...] = ()
    segments: tuple[Segment, ...] = ()
    device: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the stable JSON form; ``version`` changes when a key changes its meaning."""
        return {
            "version": REPORT_VERSION,
            "run_id": self.run_id,
            "name": self.name,
            "state": self.state,
            "message": self.message,
            "missing": list(self.missing),
            "parent": self.parent,
            "plan": self.plan,
            "ranks": self.ranks,
            "device": self.device,
            "replicas": self.replicas,
            "stages_count": self.stages_count,
            "steps_asked": self.steps_asked,
            "steps_done": self.steps_done,
            "usable_steps": self.usable_steps,
            "skipped_steps": dict(self.skipped_steps),
            "loss": self.loss,
            "step_time_s": self.step_time.to_dict() if self.step_time else None,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "bubble": self.bubble.to_dict() if self.bubble else None,
            "accounting": [rank.to_dict() for rank in self.accounting],
            "attempt": [rank.to_dict() for rank in self.attempt],
            "stages": [stage.to_dict() for stage in self.stages],
            "links": [link.to_dict() for link in self.links],
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "replay_error_ratio": self.replay_error_ratio,
            "prediction": self.prediction.to_dict() if self.prediction else None,
            "clock_uncertainty_s": {str(rank): seconds for rank, seconds in self.clock_uncertainty_s.items()},
            "clocks": [clock.to_dict() for clock in self.clocks],
            "causes": self.causes.to_dict() if self.causes else None,
            "slowdown": self.slowdown.to_dict() if self.slowdown else None,
            "critical_path": self.critical_path.to_dict() if self.critical_path else None,
            "changes": [change.to_dict() for change in self.changes],
            "segments": [segment.model_dump(mode="json") for segment in self.segments],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSources:
    """What a report is made of; :class:`pptoolkit.run.Run` gathers it."""

    info: RunInfo
    steady: SteadySteps
    steps_done: int
    scalars: pd.DataFrame
    links: tuple[LinkMeasure, ...]
    clock_uncertainty_ns: dict[int, int]
    clocks: tuple[RankClock, ...]
    attempt: tuple[AttemptAccount, ...]
    replay_error_ratio: float | None
    missing: tuple[str, ...]
    diagnosis: Diagnosis | None = None


def build_report(sources: ReportSources) -> Report:
    """Return the report as run.json states the run's state; never raises for a lack of data."""
    info, steady = sources.info, sources.steady
    stages = stage_table(steady, info)
    step_time = steady.step_time
    samples, tokens = _per_step(sources.scalars, steady, info)
    losses = losses_by_step(sources.scalars)
    diagnosis = sources.diagnosis
    return Report(
        run_id=info.run_id,
        name=info.name,
        state=info.status.value,
        message=info.message,
        missing=(*sources.missing, *(diagnosis.missing if diagnosis else ())),
        parent=info.parent,
        plan=info.plan,
        ranks=info.ranks,
        replicas=info.replicas,
        stages_count=info.stages,
        steps_asked=info.steps,
        steps_done=sources.steps_done,
        usable_steps=steady.count,
        skipped_steps=dict(steady.skipped),
        loss=float(losses.iloc[-1]) if len(losses) else None,
        step_time=step_time,
        samples_per_s=samples / step_time.median if step_time and samples else None,
        tokens_per_s=tokens / step_time.median if step_time and tokens else None,
        bubble=summarise_bubbles(steady, schedule_ratio=equal_stages_bubble_ratio(info, stages)),
        accounting=account(steady),
        attempt=sources.attempt,
        stages=stages,
        links=sources.links,
        verdict=diagnosis.verdict if diagnosis else None,
        replay_error_ratio=sources.replay_error_ratio,
        prediction=check_prediction(info, step_time) if step_time else None,
        clock_uncertainty_s={rank: ns / 1e9 for rank, ns in sources.clock_uncertainty_ns.items()},
        clocks=sources.clocks,
        causes=diagnosis.causes if diagnosis else None,
        slowdown=diagnosis.slowdown if diagnosis else None,
        critical_path=diagnosis.critical_path if diagnosis else None,
        changes=diagnosis.changes if diagnosis else (),
        segments=segments_of(info),
        device=info.device,
    )


def _per_step(scalars: pd.DataFrame, steady: SteadySteps, info: RunInfo) -> tuple[float, float]:
    """Return samples and tokens of a step, all replicas together: as counted by the ranks, else as configured."""
    rows = scalars[(scalars["attempt"] == steady.attempt) & scalars["step"].isin(steady.windows.index)]
    if len(rows) and rows["samples"].sum() > 0:
        sums = rows.groupby("step")[["samples", "tokens"]].sum().median()
        return float(sums["samples"]), float(sums["tokens"])
    return float(info.batch_size), float(info.batch_size * info.tokens_per_sample)
