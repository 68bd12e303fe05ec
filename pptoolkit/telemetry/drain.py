"""The drain: takes events from the recorder and brings them to disk, and to the metrics once somebody asks for these.

Writing is what its thread does all the time. The metrics are brought up to date by the scrape that reads them, many steps at
once: in a process whose caches training has swept, a call costs the same for one step as for fifty, so metrics that nobody
looks at should cost nothing, and those that are scraped every fifteen seconds not fifteen times what one look costs.

Every sink may fail by itself: what it lost is counted, said once, and the others go on.
"""

import threading
import time
from collections.abc import Callable
from functools import partial
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
UNMEASURED_EVENTS = 1 << 13
"""So many events wait for a scrape; then they are measured without one, which keeps memory bounded and a scrape quick."""

SCRAPE_PATIENCE_S = 0.02
_MAX_OPEN_EVENTS = 1 << 18


class Drain:
    """Moves what was recorded: to disk on each call of :meth:`write`, from there to the metrics on each of :meth:`measure`.

    Args:
        recorder: Where events come from.
        writer: Where they go.
        scalars: Where step summaries go.
        metrics: Told of everything, also of what sampling keeps off the disk.
        drops: Where losses are counted.
        pairing: Measures links; asked in the round after a scrape, since it reads files, for which no scrape should wait.
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
        self._unwritten: list[tuple[StepSummary, int, float]] = []
        self._measuring = threading.RLock()  # reentrant: a signal handler may close telemetry at any point
        self._adding = threading.RLock()  # of the time spent, by whichever thread
        self._unmeasured: list[EventRows] = []
        self._unmeasured_summaries: list[StepSummary] = []
        self._for_links: list[EventRows] = []
        self._links_wanted = False
        self._open: list[EventRows] = []  # events since the last step that ended
        self._open_events = 0
        self._overflowed = 0
        self.last_checkpoint_ns: int | None = None

    def add_summary(self, summary: StepSummary, step_ns: int) -> None:
        """Take a step's outcome and duration; called by the training thread."""
        self._summaries.append((summary, step_ns, time.time()))

    def committed(self) -> tuple[Path | None, int]:
        """Return the event file that is being written, and how many of its bytes will not be taken back."""
        return self._writer.committed

    @property
    def parts(self) -> tuple[Callable[[], None], ...]:
        """What writing consists of, in order, for one thread alone; each takes little enough for a short bubble."""
        return tuple(partial(self._timed, part) for part in (self._take_all, self._flush, self._look_around))

    def write(self) -> None:
        """Write everything recorded so far."""
        for part in self.parts:
            part()

    def measure(self, *, patience_s: float = -1) -> None:
        """Bring the metrics up to what was written.

        Args:
            patience_s: How long to wait for another thread that is at it, to which the rest is then left; -1: to its end.
        """
        if not self._measuring.acquire(timeout=patience_s):
            return
        try:
            unmeasured, summaries = self._unmeasured[:], self._unmeasured_summaries[:]
            del self._unmeasured[: len(unmeasured)], self._unmeasured_summaries[: len(summaries)]
            if unmeasured:
                self._guard("metrics", lambda: self._measure(np.concatenate(unmeasured)))
            for summary in summaries:
                self._guard("metrics", lambda: self._metrics.observe_summary(summary))  # noqa: B023 - called at once
            self._metrics.set_dropped(self._drops.counts)
        finally:
            self._measuring.release()

    def measure_for_scrape(self) -> None:
        """Bring the metrics up to what was written, links aside: these follow with the next round."""
        self._links_wanted = True
        self._timed(partial(self.measure, patience_s=SCRAPE_PATIENCE_S))

    def close(self) -> None:
        """Write the rest, end the event file, and look at the links once more."""
        self._links_wanted = True
        self.write()
        try:
            self._writer.close()
        except OSError as error:
            self._write_failed(error, 0)

    def _timed(self, part: Callable[[], None]) -> None:
        began_s = time.thread_time()
        part()
        with self._adding:
            self._metrics.add_telemetry_time(time.thread_time() - began_s)

    def _take_all(self) -> None:
        while events := self._recorder.take(CHUNK):
            self._guard("events", lambda: self._take(events), lost=len(events))
            if sum(map(len, self._unmeasured)) >= UNMEASURED_EVENTS:
                self.measure()
        # In the same breath as the events, so that a scrape sees the steps and the samples of one moment.
        taken = self._summaries[:]
        del self._summaries[: len(taken)]
        self._unmeasured_summaries += [summary for summary, *_ in taken]
        self._unwritten += taken

    def _look_around(self) -> None:
        self._write_summaries()
        overflowed = self._recorder.overflowed
        if overflowed > self._overflowed:
            self._drops.add(Reason.BUFFER_FULL, overflowed - self._overflowed)
            self._overflowed = overflowed
            self._drops.warn_once("buffer", "events come faster than they can be written, so some are dropped; use detail = {every = n}")
        if self._links_wanted or sum(map(len, self._for_links)) >= UNMEASURED_EVENTS:
            self._links_wanted = False
            self._guard("links", self._measure_links)

    def _take(self, events: list[tuple[int, ...]]) -> None:
        rows, invalid = to_rows(events)
        self._refuse(invalid)
        pending = self._writer.pending
        try:
            self._writer.append(self._sample(rows))
        except OSError as error:
            self._write_failed(error, pending + len(rows))
        self._unmeasured.append(rows)
        self._for_links.append(rows)

    def _refuse(self, wrong: int) -> None:
        if wrong:
            self._drops.add(Reason.INVALID, wrong)
            self._drops.warn_once("invalid", "events were wrong (fields, range or stage) and are not counted; check what is recorded")

    def _sample(self, rows: EventRows) -> EventRows:
        if self._keep_every == 1:
            return rows
        # The STEP events of steps that are left out go too: without the ops inside, all of their time would look
        # unattributed. Their duration is in the scalars.
        kept: EventRows = rows[(rows[:, 0] % self._keep_every == 0) | np.isin(rows[:, 3], LASTING_OPS)]
        self._drops.add(Reason.SAMPLING, len(rows) - len(kept))
        return kept

    def _measure(self, rows: EventRows) -> None:
        self._refuse(self._metrics.observe_events(rows))
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

    def _write_summaries(self) -> None:
        taken, self._unwritten = self._unwritten, []
        if not taken:
            return
        try:
            self._scalars.append([summary.to_line(step_time_s=step_ns / 1e9, unix_s=unix_s) for summary, step_ns, unix_s in taken])
        except OSError as error:
            self._write_failed(error, len(taken))

    def _measure_links(self) -> None:
        own, self._for_links = self._for_links, []
        for rows in own:
            self._pairing.add_own(rows)
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
