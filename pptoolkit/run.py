"""A run as its readers see it: live or finished, whole or damaged. Needs no torch.

    run = Run.open("runs/gpt")
    run.report().verdict
    run.suggest()[0].plan.save("plan.toml")

A :class:`Run` remembers what it has read: :meth:`Run.poll` fetches what is new, everything else works on what is there.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.accounting import account
from pptoolkit.analysis.attempt import AttemptAccount, account_attempt
from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.clocks import RankClock, rank_clocks
from pptoolkit.analysis.diagnosis import Diagnosis, compute_series, diagnose
from pptoolkit.analysis.dropped import say_dropped
from pptoolkit.analysis.layer_costs import LayerCosts, measure_layer_costs
from pptoolkit.analysis.layer_table import write_layers
from pptoolkit.analysis.links import LinkMeasure, measure_links
from pptoolkit.analysis.liveness import Liveness, RunState, judge_liveness
from pptoolkit.analysis.records import Records
from pptoolkit.analysis.segments import Segment, info_of, segments_of, span_at, spans_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.timeline import clock_uncertainty_ns
from pptoolkit.errors import PPToolkitError, RunError
from pptoolkit.planner.measure import measure_step
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.report import Report, ReportSources, build_report
from pptoolkit.planner.search import SearchSpace
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import NoChange, Suggestions, suggest
from pptoolkit.telemetry import EventReader, Flag, Op, RunDirectory, RunInfo, ScalarReader
from pptoolkit.telemetry.event_reader import Skipped
from pptoolkit.telemetry.heartbeat import Heartbeat, read_heartbeats


class Run:
    """One run directory. Open it with :meth:`open`."""

    def __init__(self, directory: RunDirectory, info: RunInfo) -> None:
        self.directory = directory
        self._info = info
        self._reader = EventReader(directory)
        self._scalar_reader = ScalarReader(directory)
        self._records = Records(ranks=info.ranks)
        self._records.spans = spans_of(info)
        self._polled = False
        self._derived = _Derived(self)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> "Run":
        """Open a run, whatever its state.

        Raises:
            RunError: If there is no readable run at ``path``.
        """
        directory = RunDirectory(path)
        return cls(directory, directory.read_info())

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def info(self) -> RunInfo:
        """run.json as it was at the last :meth:`poll`."""
        return self._info

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Which plan held from which step on: one segment, and one more for each re-cut inside the job."""
        return segments_of(self._info)

    def poll(self) -> bool:
        """Read what was written since the last call; return whether there was anything new."""
        self._polled = True
        events, scalars = self._reader.poll(), self._scalar_reader.poll()
        try:
            info = self.directory.read_info()
        except RunError:
            info = self._info  # removed or damaged while we look: what was known stays known
        if not events.num_rows and not scalars and info == self._info:
            return False
        self._info = info
        self._records.spans = spans_of(info)
        self._records.add(events, scalars, ranks=info.ranks)
        self._derived = _Derived(self)
        return True

    @property
    def events(self) -> pa.Table:
        """All events read so far, on the ranks' own clocks."""
        return self._read.events

    @property
    def marks(self) -> pa.Table:
        """The few events that say when steps were, what the clocks showed and what the idle links can: STEP, CLOCK and PROBE."""
        return self._read.marks

    def timeline(self, steps: tuple[int, int] | None = None) -> pd.DataFrame:
        """Return the events on rank 0's clock.

        Args:
            steps: First step and the step after the last; None: all.
        """
        return self._read.timeline(steps)

    def scalars(self) -> pd.DataFrame:
        """Return one row per rank and step: attempt, rank, step, unix_s and what the step yielded (loss, samples, tokens, ...)."""
        return self._read.scalars

    def steps(self) -> pd.DataFrame:
        """Return the window of every step, of all attempts, on rank 0's clock.

        Returns:
            Columns attempt, step, start_ns, end_ns, step_time_s, ranks, complete, first_use; ordered by attempt and step.
        """
        return self._read.steps()

    def usable_steps(self) -> pd.DataFrame:
        """Return the windows of the steps behind the statistics, those of :meth:`steady`, without their events."""
        return self._read.usable()[0]

    def bubble_ratios(self, windows: pd.DataFrame) -> npt.NDArray[np.float64]:
        """Return the bubble ratio of each step in ``windows``, rows of :meth:`steps` of one attempt."""
        return self._read.bubble_ratios(windows)

    @property
    def silent_ranks(self) -> frozenset[int]:
        """Ranks of the layout that have written no event so far."""
        return frozenset(range(self._info.ranks)) - self._read.seen

    @property
    def skipped(self) -> Skipped:
        """What could not be read of the events so far."""
        return self._reader.skipped

    @property
    def _read(self) -> Records:
        if not self._polled:
            self.poll()
        return self._records

    def heartbeats(self) -> list[Heartbeat]:
        """Return the latest heartbeat of every rank that has written one, by rank. Always read anew."""
        return list(read_heartbeats(self.directory))

    # -- what it means -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> RunState:
        """How the run stands at this moment."""
        return self.liveness().state

    def liveness(self, *, now_unix_s: float | None = None, heartbeats: Sequence[Heartbeat] | None = None) -> Liveness:
        """Return the state with its reason.

        Args:
            now_unix_s: For looking back; default: now.
            heartbeats: Where they were read a moment ago; default: read anew.
        """
        scalars = self.scalars()
        median = float(scalars["step_time_s"].tail(100).median()) if len(scalars) else 0.0
        return judge_liveness(
            self.info,
            self.heartbeats() if heartbeats is None else heartbeats,
            now_unix_s=time.time() if now_unix_s is None else now_unix_s,
            # Of the newest step, not the newest time: the wall clock may have been set back.
            progress_unix_s=float(scalars["unix_s"].tail(self.info.ranks).max()) if len(scalars) else 0.0,
            step_time_s=median if median == median else 0.0,
        )

    def steady(self) -> SteadySteps:
        """Return the usable steps: complete on all ranks, past the first use, the most recent ones of the latest attempt."""
        if not self._polled:
            self.poll()
        return self._derived.steady

    def links(self) -> tuple[LinkMeasure, ...]:
        """Return what each direction of each stage border did in the usable steps."""
        self.steady()
        return self._derived.links

    def layer_costs(self) -> LayerCosts | None:
        """Return what each layer costs, or None without usable steps."""
        return measure_layer_costs(self.steady(), self._derived.info) if self.steady().count and self.info.layers else None

    def measured_step(self) -> MeasuredStep | None:
        """Return what the planner knows of the run's step, or None without usable steps or without a layer list."""
        self.steady()
        return self._derived.measured

    def report(self) -> Report:
        """Return everything that is known; what is missing is said in the report, never raised."""
        liveness = self.liveness()  # changes with the time of day; all the rest only when something new was read
        return replace(self._derived.report, state=liveness.state.value, message=liveness.reason or self.info.message)

    def diagnosis(self) -> Diagnosis | None:
        """Return why the run takes as long as it does, or None without usable steps."""
        self.steady()
        return self._derived.diagnosis

    def suggest(self, space: SearchSpace | None = None) -> Suggestions:
        """Return what would make the run faster, or why nothing is suggested. Writes nothing.

        Args:
            space: What may change beside the cuts, and the memory limit; None: only the cuts.
        """
        self.steady()
        if space is None or self._derived.measured is None:
            return self._derived.suggestions
        return suggest(self._derived.measured, self._derived.info, space=space)

    def save_suggestions(self) -> Suggestions:
        """Write layers.arrow and suggestions.json into the run directory, and return the suggestions.

        Raises:
            RunError: If the run directory is not writable.
        """
        costs, found = self.layer_costs(), self.suggest()
        if costs is not None:
            write_layers(self.directory.layers_path, costs)
        found.save(self.directory.suggestions_path)
        return found


class _Derived:
    """What follows from what a run has read; made anew when something new was read, computed when asked for."""

    def __init__(self, run: Run) -> None:
        self._run, self._records = run, run._records

    @cached_property
    def info(self) -> RunInfo:
        """run.json as it was in the usable steps."""
        return info_of(self._run._info, self.steady)

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
        first_step, end_step = span_at(self._run._info, int(self.steady.windows.index[-1]))
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
        found = list(self._run._reader.skipped.notices)
        silent = sorted(self._run.silent_ranks)
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
        return (*found, *say_dropped(self._run.heartbeats()))
