"""The drain: takes events from the recorder and brings them to disk and to the metrics. Runs in its own thread.

Every sink may fail by itself: what it lost is counted, said once, and the others go on.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pptoolkit.telemetry.accounting import split_ended_steps
from pptoolkit.telemetry.drops import Drops, Reason
from pptoolkit.telemetry.event_writer import EventRows, EventWriter, to_rows
from pptoolkit.telemetry.events import LASTING_OPS, Op
from pptoolkit.telemetry.links import LinkPairing
from pptoolkit.telemetry.metrics import RankMetrics
from pptoolkit.telemetry.recorder import Recorder
from pptoolkit.telemetry.scalars import ScalarWriter, StepSummary

CHUNK = 2048  # events converted at a time: the conversion holds the interpreter lock, and training wants it back
LINK_INTERVAL_S = 1.0
_MAX_OPEN_EVENTS = 1 << 18


class Drain:
    """Moves everything recorded so far on each call of :meth:`run`.

    Args:
        recorder: Where events come from.
        writer: Where they go.
        scalars: Where step summaries go.
        metrics: Told of everything, also of what sampling keeps off the disk.
        drops: Where losses are counted.
        pairing: Measures links; asked about once a second.
        keep_every: Keep the events of every n-th step on disk.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        writer: EventWriter,
        scalars: ScalarWriter,
        metrics: RankMetrics,
        drops: Drops,
        pairing: LinkPairing,
        keep_every: int = 1,
    ) -> None:
        self._recorder, self._writer, self._scalars, self._metrics, self._drops = recorder, writer, scalars, metrics, drops
        self._pairing, self._keep_every = pairing, keep_every
        self._summaries: list[tuple[StepSummary, int, float]] = []  # with the step's duration and the unix time
        self._open: list[EventRows] = []  # events since the last step that ended
        self._open_events = 0
        self._overflowed = 0
        self._links_due_s = 0.0
        self.last_checkpoint_ns: int | None = None

    def add_summary(self, summary: StepSummary, step_ns: int) -> None:
        """Take a step's outcome and duration; called by the training thread."""
        self._summaries.append((summary, step_ns, time.time()))

    def committed(self) -> tuple[Path | None, int]:
        """Return the event file that is being written, and how many of its bytes will not be taken back."""
        return self._writer.committed

    def run(self) -> None:
        """Move everything recorded so far."""
        began_s = time.thread_time()
        while events := self._recorder.take(CHUNK):
            self._guard("events", lambda: self._take(events), lost=len(events))
        self._flush()
        self._take_summaries()
        overflowed = self._recorder.overflowed
        if overflowed > self._overflowed:
            self._drops.add(Reason.BUFFER_FULL, overflowed - self._overflowed)
            self._overflowed = overflowed
            self._drops.warn_once("buffer", "events come faster than they can be written, so some are dropped; use detail = {every = n}")
        if time.monotonic() >= self._links_due_s:
            self._links_due_s = time.monotonic() + LINK_INTERVAL_S
            self._guard("links", self._measure_links)
        self._metrics.set_dropped(self._drops.counts)
        self._metrics.add_telemetry_time(time.thread_time() - began_s)

    def close(self) -> None:
        """Move the rest and end the event file."""
        self.run()
        try:
            self._writer.close()
        except OSError as error:
            self._write_failed(error, 0)

    def _take(self, events: list[tuple[int, ...]]) -> None:
        rows, invalid = to_rows(events)
        pending = self._writer.pending
        try:
            self._writer.append(self._sample(rows))
        except OSError as error:
            self._write_failed(error, pending + len(rows))
        self._guard("metrics", lambda: self._measure(rows, invalid))

    def _sample(self, rows: EventRows) -> EventRows:
        if self._keep_every == 1:
            return rows
        # The STEP events of steps that are left out go too: without the ops inside, all of their time would look
        # unattributed. Their duration is in the scalars.
        kept: EventRows = rows[(rows[:, 0] % self._keep_every == 0) | np.isin(rows[:, 3], LASTING_OPS)]
        self._drops.add(Reason.SAMPLING, len(rows) - len(kept))
        return kept

    def _measure(self, rows: EventRows, invalid: int) -> None:
        wrong = invalid + self._metrics.observe_events(rows)
        if wrong:
            self._drops.add(Reason.INVALID, wrong)
            self._drops.warn_once(
                "invalid", f"{wrong} events were wrong (fields, range or stage) and are not counted; check what is recorded"
            )
        self._pairing.add_own(rows)
        checkpoints = rows[rows[:, 3] == Op.CHECKPOINT]
        if len(checkpoints):
            self.last_checkpoint_ns = int(checkpoints[-1, 6])
        self._close_steps(rows)

    def _close_steps(self, rows: EventRows) -> None:
        """Tell the metrics of the steps whose STEP event has come, and keep what follows the last one."""
        self._open.append(rows)
        self._open_events += len(rows)
        ends = np.flatnonzero(rows[:, 3] == Op.STEP)
        if len(ends):
            rest = rows[ends[-1] + 1 :]
            whole = np.concatenate(self._open)
            whole = whole[: len(whole) - len(rest)]
            self._open, self._open_events = [rest], len(rest)
            self._metrics.observe_steps(split_ended_steps(whole), whole[whole[:, 0] == whole[-1, 0]])
        while self._open_events > _MAX_OPEN_EVENTS:  # a step that never ends
            self._open_events -= len(self._open.pop(0))

    def _flush(self) -> None:
        pending = self._writer.pending
        try:
            self._writer.flush()
        except OSError as error:
            self._write_failed(error, pending)
        retired = self._writer.take_retired()
        if retired:
            self._drops.add(Reason.RETENTION, retired)

    def _take_summaries(self) -> None:
        taken = self._summaries[:]
        del self._summaries[: len(taken)]
        if not taken:
            return
        for summary, *_ in taken:
            self._guard("metrics", lambda: self._metrics.observe_summary(summary))  # noqa: B023 - called at once
        try:
            self._scalars.append([summary.to_line(step_time_s=step_ns / 1e9, unix_s=unix_s) for summary, step_ns, unix_s in taken])
        except OSError as error:
            self._write_failed(error, len(taken))

    def _measure_links(self) -> None:
        for sample in self._pairing.poll():
            self._metrics.observe_link(sample)

    def _write_failed(self, error: OSError, lost: int) -> None:
        self._drops.add(Reason.WRITE_FAILED, lost)
        place = error.filename or self._writer.path or "the run directory"
        self._drops.warn_once(
            "write",
            f"cannot write {place}: {error.strerror or error}; events are dropped and counted: free space, or restore the run directory",
        )

    def _guard(self, subject: str, work: Callable[[], None], *, lost: int = 0) -> None:
        try:
            work()
        except Exception as error:
            self._drops.add(Reason.INTERNAL, lost)
            self._drops.warn_once(f"fault in {subject}", f"{subject} failed: {type(error).__name__}: {error}; please report this")
