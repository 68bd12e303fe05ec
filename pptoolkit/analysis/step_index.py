"""What is asked of every step of a run, kept up to date as events come in: its window, and how long the ranks computed in it.

A live run is looked at every second and grows by a step or two in between. Only the steps that the new events touch are gone through again;
when clocks were read anew, which moves times that were there before, all are.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.steps import step_windows
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry.clock import ClockMap
from pptoolkit.telemetry.event_log import StepBlocks
from pptoolkit.telemetry.event_reader import READER_SCHEMA
from pptoolkit.telemetry.events import COMPUTE_OPS, Op

_COMPUTE = pa.array([int(op) for op in COMPUTE_OPS], pa.uint8())


class StepIndex:
    """The steps of one run.

    Args:
        ranks: How many ranks must have finished a step for it to be complete.
    """

    def __init__(self, *, ranks: int) -> None:
        self._ranks = ranks
        self._windows = step_windows(build_timeline(READER_SCHEMA.empty_table()), ranks=ranks)
        self._touched: tuple[int, int] | None = None
        self._all = False
        self._compute_ns: dict[tuple[int, int], float] = {}

    def note(self, events: pa.Table, marks: pa.Table) -> None:
        """Take notice of new events; ``marks`` are the STEP, CLOCK and PROBE events among them."""
        self._add_compute(events)
        self._all |= bool(pc.any(pc.equal(marks["op"], int(Op.CLOCK))).as_py())
        steps = marks.filter(pc.equal(marks["op"], int(Op.STEP)))["step"]
        if len(steps):
            edges = pc.min_max(steps).as_py()
            first, last = self._touched or (edges["min"], edges["max"])
            self._touched = min(first, edges["min"]), max(last, edges["max"])

    def windows(self, marks: StepBlocks, clocks: Mapping[tuple[int, int], ClockMap]) -> pd.DataFrame:
        """Return the windows of all steps as :func:`~pptoolkit.analysis.steps.step_windows` does, on rank 0's clock.

        Args:
            marks: All marks, those that were noted included.
            clocks: The clock of each (rank, attempt).
        """
        if self._all or self._touched is not None:
            rows = marks.table if self._all or self._touched is None else marks.between(*self._touched)
            rows = rows.filter(pc.equal(rows["op"], int(Op.STEP)))
            fresh = step_windows(build_timeline(rows, clocks), ranks=self._ranks)
            self._windows = fresh if self._all or self._touched is None else self._joined(fresh, *self._touched)
            self._touched, self._all = None, False
        return self._windows

    def compute_s(self, attempt: int, steps: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the seconds that all ranks together computed in each of ``steps``; 0 where nothing is known."""
        found = [self._compute_ns.get((attempt, int(step)), 0.0) for step in np.asarray(steps)]
        return np.asarray(found, dtype=np.float64) / 1e9

    def _joined(self, fresh: pd.DataFrame, first: int, last: int) -> pd.DataFrame:
        step = self._windows["step"].to_numpy()
        kept = self._windows[(step < first) | (step > last)]
        joined = pd.concat([kept, fresh], ignore_index=True) if len(kept) else fresh
        attempt, step = joined["attempt"].to_numpy(), joined["step"].to_numpy()
        in_order = (attempt[1:] > attempt[:-1]) | ((attempt[1:] == attempt[:-1]) & (step[1:] > step[:-1]))
        return joined if in_order.all() else joined.sort_values(["attempt", "step"], ignore_index=True)

    def _add_compute(self, events: pa.Table) -> None:
        rows = events.filter(pc.is_in(events["op"], _COMPUTE))
        if not rows.num_rows:
            return
        step, attempt = (rows[name].to_numpy().astype(np.int64) for name in ("step", "attempt"))
        keys, of = np.unique((attempt << 32) + step, return_inverse=True)
        lengths = pc.subtract(rows["end_ns"], rows["start_ns"]).to_numpy()
        for key, ns in zip(keys.tolist(), np.bincount(of, weights=lengths).tolist(), strict=True):
            place = (key >> 32, key & 0xFFFFFFFF)
            self._compute_ns[place] = self._compute_ns.get(place, 0.0) + ns
