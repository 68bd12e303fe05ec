"""What follows from what was read of a run: the usable steps, links, costs, diagnosis, suggestions and the report of them all."""

from collections.abc import Callable, Sequence
from functools import cached_property

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.accounting import account
from pptoolkit.analysis.attempt import AttemptAccount, account_attempt
from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.clocks import RankClock, rank_clocks
from pptoolkit.analysis.diagnosis import Diagnosis, compute_series, diagnose
from pptoolkit.analysis.dropped import say_dropped
from pptoolkit.analysis.layer_costs import measure_layer_costs
from pptoolkit.analysis.links import LinkMeasure, measure_links
from pptoolkit.analysis.records import Records
from pptoolkit.analysis.segments import info_of, span_at
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.timeline import clock_uncertainty_ns
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.measure import measure_step
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.report import Report, ReportSources, build_report
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import NoChange, Suggestions, suggest
from pptoolkit.telemetry import Flag, Op, RunInfo
from pptoolkit.telemetry.heartbeat import Heartbeat


class Derived:
    """Computed when asked for, and once; made anew when something new was read.

    Args:
        info: run.json as it is now.
        records: What was read.
        notices: What could not be read, in sentences.
        heartbeats: Reads the ranks' last signs of life.
    """

    def __init__(self, info: RunInfo, records: Records, *, notices: Sequence[str], heartbeats: Callable[[], Sequence[Heartbeat]]) -> None:
        self._info, self._records, self._notices, self._heartbeats = info, records, notices, heartbeats

    @cached_property
    def info(self) -> RunInfo:
        """run.json as it was in the usable steps."""
        return info_of(self._info, self.steady)

    @property
    def silent_ranks(self) -> frozenset[int]:
        """Ranks of the layout that have written no event so far."""
        return frozenset(range(self._info.ranks)) - self._records.seen

    @property
    def scalars(self) -> pd.DataFrame:
        return self._records.scalars

    @cached_property
    def steps_done(self) -> int:
        # By the scalars too: events of old or left-out steps may not be on disk.
        windows = self._records.steps()
        told = self.scalars.groupby(["attempt", "step"])["rank"].nunique()
        whole = told[told >= self.info.ranks].index.get_level_values("step")
        return len(set(windows.loc[windows["complete"], "step"]) | set(whole))

    @cached_property
    def steady(self) -> SteadySteps:
        return self._records.steady()

    @cached_property
    def uncertainty_ns(self) -> dict[int, int]:
        return clock_uncertainty_ns(self._records.marks)

    @cached_property
    def clocks(self) -> tuple[RankClock, ...]:
        return rank_clocks(self._records.marks)

    @cached_property
    def attempt(self) -> tuple[AttemptAccount, ...]:
        return account_attempt(self._records.events, self.scalars, account(self.steady))

    @cached_property
    def links(self) -> tuple[LinkMeasure, ...]:
        marks = self._records.marks
        probes = marks.filter(pc.equal(marks["op"], int(Op.PROBE))).to_pandas()
        return measure_links(self.steady, probes, uncertainty_ns=self.uncertainty_ns)

    @cached_property
    def measured(self) -> MeasuredStep | None:
        if not self.steady.count or not self.info.layers:
            return None
        return measure_step(self.steady, self.info, measure_layer_costs(self.steady, self.info), self.links)

    @cached_property
    def replay_error_ratio(self) -> float | None:
        if self.measured is None or self.measured.layers.missing:
            return None
        try:
            return Predictor(self.measured).replay_error_ratio
        except PPToolkitError:
            return None  # a schedule that this release cannot build: suggest() says so

    @cached_property
    def suggestions(self) -> Suggestions:
        if self.measured is None:
            return Suggestions(run_id=self.info.run_id, no_change=NoChange(reason="; ".join(self.missing), conclusive=False))
        return suggest(self.measured, self.info)

    @cached_property
    def report(self) -> Report:
        return build_report(
            ReportSources(
                info=self.info,
                steady=self.steady,
                steps_done=self.steps_done,
                scalars=self.scalars,
                links=self.links,
                clock_uncertainty_ns=self.uncertainty_ns,
                clocks=self.clocks,
                attempt=self.attempt,
                replay_error_ratio=self.replay_error_ratio,
                missing=self.missing,
                diagnosis=self.diagnosis,
            )
        )

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        if not self.steady.count:
            return None
        layers = self.measured.layers if self.measured else None
        return diagnose(self.steady, self.info, layers=layers, compute=self._compute, checkpoints=self._checkpoints)

    @property
    def _checkpoints(self) -> pd.DataFrame:
        events = self._records.events
        rows = events.filter(pc.equal(events["op"], int(Op.CHECKPOINT))).to_pandas()
        found: pd.DataFrame = rows[rows["attempt"] == self.steady.attempt]
        return found

    @property
    def _compute(self) -> pd.DataFrame:
        """Compute by rank, step and op of the attempt that counts; a step of a first use is no part of a series."""
        events, attempt = self._records.events, self.steady.attempt
        first_step, end_step = span_at(self._info, int(self.steady.windows.index[-1]))
        chosen = pc.and_(pc.is_in(events["op"], pa.array(COMPUTE_CODES, pa.uint8())), pc.equal(events["attempt"], attempt))
        # Another cut is another amount of work for a rank, and no change of the rank.
        chosen = pc.and_(chosen, pc.and_(pc.greater_equal(events["step"], first_step), pc.less(events["step"], end_step)))
        rows = events.filter(chosen).select(["rank", "step", "op", "start_ns", "end_ns"]).to_pandas()
        marks = self._records.marks
        first = marks.filter(pc.equal(marks["op"], int(Op.STEP))).select(["step", "flags"]).to_pandas()
        fresh = first.loc[(first["flags"] & int(Flag.FIRST_USE)) > 0, "step"].unique()
        return compute_series(rows[~rows["step"].isin(fresh)])

    @cached_property
    def missing(self) -> tuple[str, ...]:
        found = list(self._notices)
        silent = sorted(self.silent_ranks)
        if len(silent) == self.info.ranks:
            found.append("no rank has written events yet; they come with the first steps")
        elif silent:
            some = ", ".join(map(str, silent[:8])) + (" and more" if len(silent) > 8 else "")
            found.append(f"ranks without events: {some}; a step counts only when all ranks have finished it")
        if not self.steady.count and len(silent) < self.info.ranks:
            found.append("no step is complete on all ranks after the first one yet; statistics need a few more steps")
        if not self.info.layers:
            found.append("run.json names no layers, so nothing can be planned from this run")
        if self.measured is not None:
            found += self.measured.layers.missing
        return (*found, *say_dropped(self._heartbeats()))
