"""What was read of a run: its events on rank 0's clock, its steps, its scalars. Grows poll by poll; each look costs what is new."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.segments import END
from pptoolkit.analysis.step_index import StepIndex
from pptoolkit.analysis.steps import STEADY_STEPS, SteadySteps, choose_steps, steady_of
from pptoolkit.analysis.timeline import build_timeline, read_clocks
from pptoolkit.telemetry.clock import ClockMap
from pptoolkit.telemetry.event_log import EventLog
from pptoolkit.telemetry.events import Op

SCALAR_COLUMNS = {
    "step": "int64",
    "unix_s": "float64",
    "step_time_s": "float64",
    "loss": "float64",
    "samples": "int64",
    "tokens": "int64",
    "gradient_norm": "float64",
    "learning_rate": "float64",
    "rank": "int64",
    "attempt": "int64",
}
_SCALAR_ORDER = ["attempt", "step", "rank"]
# Statistics over more events than these gain nothing but waiting: with many ranks fewer steps say as much.
STEADY_EVENTS = 400_000
FEWEST_STEADY_STEPS = 20


class Records:
    """The events and scalars of one run.

    Args:
        ranks: How many ranks must have finished a step for it to be complete.

    Attributes:
        spans: (first step, step after the last) of the plans that held one after the other; steps of the newest one count.
        scalars: One row per rank and step, ordered by attempt, step and rank.
        seen: Ranks that have written an event.
        clocks: The clock of each (rank, attempt) that measured its offset to rank 0.
    """

    def __init__(self, *, ranks: int) -> None:
        self.ranks = ranks
        self.spans: tuple[tuple[int, int], ...] = ((0, END),)
        self.scalars = _scalar_frame([])
        self.seen: set[int] = set()
        self.clocks: dict[tuple[int, int], ClockMap] = {}
        self._log = EventLog()
        self._index = StepIndex(ranks=ranks)

    def add(self, events: pa.Table, scalars: list[dict[str, Any]], *, ranks: int) -> None:
        """Take in what a poll brought; ``ranks`` may change as run.json does."""
        if ranks != self.ranks:
            self.ranks, self._index = ranks, StepIndex(ranks=ranks)
            self._index.note(self._log.events.table, self._log.marks.table)
        self.scalars = _joined(self.scalars, scalars)
        if events.num_rows:
            marks = self._log.append(events)
            self._index.note(events, marks)
            self.seen.update(pc.unique(events["rank"]).to_pylist())
            if pc.any(pc.equal(marks["op"], int(Op.CLOCK))).as_py():
                self.clocks = read_clocks(self._log.marks.table)

    @property
    def events(self) -> pa.Table:
        """All events, on the ranks' own clocks."""
        return self._log.events.table

    @property
    def marks(self) -> pa.Table:
        """The STEP, CLOCK and PROBE events, on the ranks' own clocks."""
        return self._log.marks.table

    def timeline(self, steps: tuple[int, int] | None = None) -> pd.DataFrame:
        """Return the events on rank 0's clock; ``steps``: first step and the step after the last, None: all."""
        return build_timeline(self.events if steps is None else self._log.events.between(steps[0], steps[1] - 1), self.clocks)

    def steps(self) -> pd.DataFrame:
        """Return the window of every step, of all attempts, as :func:`~pptoolkit.analysis.steps.step_windows` does."""
        return self._index.windows(self._log.marks, self.clocks)

    def usable(self) -> tuple[pd.DataFrame, int, dict[str, int]]:
        """Choose the steps behind the statistics, as :func:`~pptoolkit.analysis.steps.choose_steps` does, all under one plan."""
        windows = self.steps()
        per_step = max(len(self._log.events) / max(len(windows), 1), 1.0)
        last = min(STEADY_STEPS, max(FEWEST_STEADY_STEPS, int(STEADY_EVENTS / per_step)))
        if len(self.spans) > 1:
            step = windows["step"]
            for first, end in reversed(self.spans):
                chosen = choose_steps(windows[(step >= first) & (step < end)], last=last)
                if len(chosen[0]):
                    return chosen
        return choose_steps(windows, last=last)

    def steady(self) -> SteadySteps:
        """Return the usable steps with their events."""
        # Chosen by the STEP events alone, so that a long run is not aligned and sorted as a whole at every look.
        usable, attempt, skipped = self.usable()
        if usable.empty:
            return steady_of(build_timeline(self.events.slice(0, 0), {}), usable, attempt, skipped)
        events = self._log.events.between(int(usable["step"].min()), int(usable["step"].max()))
        inside = pc.and_(pc.equal(events["attempt"], attempt), pc.is_in(events["step"], pa.array(usable["step"], pa.int32())))
        return steady_of(build_timeline(events.filter(inside), self.clocks), usable, attempt, skipped)

    def bubble_ratios(self, windows: pd.DataFrame) -> npt.NDArray[np.float64]:
        """Return 1 - compute of all ranks / (ranks * step time) of each step in ``windows``, which are of one attempt."""
        if windows.empty:
            return np.zeros(0)
        compute_s = self._index.compute_s(int(windows["attempt"].iloc[0]), windows["step"])
        ratios: npt.NDArray[np.float64] = 1.0 - compute_s / (self.ranks * windows["step_time_s"].to_numpy(dtype=np.float64))
        return ratios


def _scalar_frame(rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(SCALAR_COLUMNS))
    return frame.astype(SCALAR_COLUMNS).sort_values(_SCALAR_ORDER, kind="stable", ignore_index=True)


def _joined(scalars: pd.DataFrame, rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the scalars with new rows; sorted anew only where a rank came late."""
    if not rows:
        return scalars
    fresh = _scalar_frame(rows)
    if scalars.empty:
        return fresh
    joined = pd.concat([scalars, fresh], ignore_index=True)
    late = tuple(fresh[_SCALAR_ORDER].iloc[0]) < tuple(scalars[_SCALAR_ORDER].iloc[-1])
    return joined.sort_values(_SCALAR_ORDER, kind="stable", ignore_index=True) if late else joined
