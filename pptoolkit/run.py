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

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from pptoolkit.analysis.diagnosis import Diagnosis
from pptoolkit.analysis.layer_costs import LayerCosts, measure_layer_costs
from pptoolkit.analysis.layer_table import write_layers
from pptoolkit.analysis.links import LinkMeasure
from pptoolkit.analysis.liveness import Liveness, RunState, judge_liveness
from pptoolkit.analysis.records import Records
from pptoolkit.analysis.segments import Segment, segments_of, spans_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.derived import Derived
from pptoolkit.errors import RunError
from pptoolkit.planner.report import Report
from pptoolkit.planner.search import SearchSpace
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import Suggestions, suggest
from pptoolkit.telemetry import EventReader, RunDirectory, RunInfo, ScalarReader
from pptoolkit.telemetry.event_reader import Skipped
from pptoolkit.telemetry.heartbeat import Heartbeat, HeartbeatReader


class Run:
    """One run directory. Open it with :meth:`open`."""

    def __init__(self, directory: RunDirectory, info: RunInfo) -> None:
        self.directory = directory
        self._info = self._info_read = info
        self._info_identity = (-1, -1, -1)
        self._reader = EventReader(directory)
        self._scalar_reader = ScalarReader(directory)
        self._beats = HeartbeatReader(directory)
        self._records = Records(ranks=info.ranks)
        self._records.spans = spans_of(info)
        self._polled = False
        self._derived = self._derive()

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
            info = self._read_info()
        except (RunError, OSError):
            info = self._info  # removed or damaged while we look: what was known stays known
        if not events.num_rows and not scalars and info == self._info:
            return False
        self._info = info
        self._records.spans = spans_of(info)
        self._records.add(events, scalars, ranks=info.ranks)
        self._derived = self._derive()
        return True

    def _read_info(self) -> RunInfo:
        # It is replaced as a whole, so another inode or time says that it changed; with a thousand ranks it takes long to check anew.
        stat = self.directory.info_path.stat()
        identity = stat.st_ino, stat.st_mtime_ns, stat.st_size
        if identity != self._info_identity:
            self._info_read, self._info_identity = self.directory.read_info(), identity
        return self._info_read

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
        self._read_once()
        return self._derived.silent_ranks

    @property
    def skipped(self) -> Skipped:
        """What could not be read of the events so far."""
        return self._reader.skipped

    @property
    def _read(self) -> Records:
        self._read_once()
        return self._records

    def _read_once(self) -> None:
        if not self._polled:
            self.poll()

    def _derive(self) -> Derived:
        return Derived(self._info, self._records, notices=self._reader.skipped.notices, heartbeats=self.heartbeats)

    def heartbeats(self) -> list[Heartbeat]:
        """Return the latest heartbeat of every rank that has written one, by rank; looked for at every call."""
        return list(self._beats.read())

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
        self._read_once()
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
