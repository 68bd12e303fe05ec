"""Writing events: one writer a file, an Arrow IPC stream, one record batch appended per flush.

A batch reaches the file by one ``write``; when that fails half way the tail is cut off again, so a full disk leaves
a readable file and the writer goes on as soon as there is space.
"""

import contextlib
import errno
import os
import socket
from array import array
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pptoolkit.telemetry.events import EVENT_SCHEMA, SCHEMA_VERSION
from pptoolkit.telemetry.retention import retire
from pptoolkit.telemetry.run_directory import RunDirectory

DEFAULT_SEGMENT_BYTES = 64 << 20
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_COLUMNS = [(i, field.name, field.type.to_pandas_dtype()) for i, field in enumerate(EVENT_SCHEMA)]
_LEAST, _MOST = (np.array([getattr(np.iinfo(kind), end) for _, _, kind in _COLUMNS], dtype=np.int64) for end in ("min", "max"))
_FLUSH_ROWS = 1 << 16
_LEAST_SEGMENT_BYTES = 1 << 12

EventRows = npt.NDArray[np.int64]
"""Events as an int64 array of shape (events, 10), columns as in the schema."""


def to_rows(events: Sequence[Sequence[int]]) -> tuple[EventRows, int]:
    """Return events as an array, and how many were no events (wrong length, not whole numbers, out of a column's range)."""
    try:
        if any(len(event) != len(_COLUMNS) for event in events):
            raise ValueError
        # Flat and as an array first: half of what numpy takes to find out by itself how the tuples lie.
        rows = np.frombuffer(array("q", list(chain.from_iterable(events))), dtype=np.int64).reshape(-1, len(_COLUMNS))
    except (TypeError, ValueError, OverflowError):
        rows = np.array([e for e in events if _is_event(e)], dtype=np.int64).reshape(-1, len(_COLUMNS))
    inside = (rows >= _LEAST) & (rows <= _MOST)
    rows = rows if inside.all() else rows[inside.all(axis=1)]
    return rows, len(events) - len(rows)


def to_batch(rows: EventRows, schema: pa.Schema = EVENT_SCHEMA) -> pa.RecordBatch:
    """Return rows, as from :func:`to_rows`, as a record batch."""
    # From buffers: to learn of each array what it already says takes pyarrow as long again.
    buffers = [pa.py_buffer(np.ascontiguousarray(rows[:, i], dtype=kind)) for i, _, kind in _COLUMNS]
    arrays = [pa.Array.from_buffers(field.type, len(rows), [None, buffer]) for field, buffer in zip(EVENT_SCHEMA, buffers, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class EventWriter:
    """Appends one rank's events to the run directory. Opens its file at the first flush.

    Args:
        run: The run directory; its ``events`` folder must exist.
        rank: Global rank.
        replica: Data-parallel copy that the rank belongs to.
        attempt: Which start of the run's processes this is.
        host: Host name; default: this host's.
        clock_source: Where times come from, e.g. ``"monotonic"`` or ``"cuda-events"``.
        segment_bytes: A segment that has grown past this is closed and the next one begun.
        keep_bytes: Bound of all event files of this rank; the oldest are removed when a segment begins. None: no bound.

    Attributes:
        committed: The current segment, and how many of its bytes will not be taken back; one value, for readers in other threads.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        rank: int,
        replica: int = 0,
        attempt: int = 0,
        host: str | None = None,
        clock_source: str = "monotonic",
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        keep_bytes: int | None = None,
    ) -> None:
        self._run, self._rank, self._attempt, self._keep_bytes = run, rank, attempt, keep_bytes
        # Several segments to a bound, so that what goes at a time is a part of what is kept.
        self._segment_bytes = segment_bytes if keep_bytes is None else max(_LEAST_SEGMENT_BYTES, min(segment_bytes, keep_bytes // 4))
        self._retired = 0
        self.committed: tuple[Path | None, int] = (None, 0)
        self._schema = EVENT_SCHEMA.with_metadata(
            {
                "pptoolkit.schema_version": str(SCHEMA_VERSION),
                "pptoolkit.rank": str(rank),
                "pptoolkit.replica": str(replica),
                "pptoolkit.host": host if host is not None else socket.gethostname(),
                "pptoolkit.attempt": str(attempt),
                "pptoolkit.clock_source": clock_source,
            }
        )
        self._pending: list[EventRows] = []
        self._pending_rows = 0
        self._file = -1
        self._size = 0
        self._segment = -1
        self.path: Path | None = None  # of the current segment

    @property
    def pending(self) -> int:
        """Events appended but not yet written."""
        return self._pending_rows

    def append(self, events: Sequence[Sequence[int]] | EventRows) -> int:
        """Take events for the next flush; return how many were refused because they are no events.

        Raises:
            OSError: If so many were pending that they had to be written, and that failed; these are lost.
        """
        rows, refused = (events, 0) if isinstance(events, np.ndarray) else to_rows(events)
        if len(rows):
            self._pending.append(rows)
            self._pending_rows += len(rows)
        if self._pending_rows >= _FLUSH_ROWS:
            self.flush()
        return refused

    def flush(self) -> None:
        """Write what is pending as one record batch.

        Raises:
            OSError: If it cannot be written; what was pending is lost, and the file ends with the last whole batch.
        """
        if not self._pending_rows:
            return
        rows = np.concatenate(self._pending) if len(self._pending) > 1 else self._pending[0]
        self._pending, self._pending_rows = [], 0
        message = to_batch(rows, self._schema).serialize()
        if self._file >= 0 and self._size >= self._segment_bytes:
            self._end_segment()
        if self._file < 0:
            self._begin_segment()
        self._write(memoryview(message))

    def take_retired(self) -> int:
        """Return how many events were removed with old segments since the last call."""
        retired, self._retired = self._retired, 0
        return retired

    def close(self) -> None:
        """Flush, and mark the end of the stream.

        Raises:
            OSError: As :meth:`flush`; the file is closed all the same.
        """
        try:
            self.flush()
        finally:
            self._end_segment()

    def _begin_segment(self) -> None:
        while True:
            self._segment += 1
            path = self._run.segment_path(self._rank, self._attempt, self._segment)
            try:
                self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
            except FileExistsError:  # left by an earlier process of this attempt: one writer a file, so take the next
                continue
        self.path, self._size = path, 0
        self.committed = (path, 0)
        self._write(memoryview(self._schema.serialize()))
        if self._keep_bytes is not None:
            self._make_room(path, self._keep_bytes)

    def _make_room(self, current: Path, keep_bytes: int) -> None:
        # The segment that begins may grow to its full size before there is the next occasion.
        bound = max(0, keep_bytes - self._segment_bytes)
        retired = retire(self._run.events_path, rank=self._rank, attempt=self._attempt, keep_bytes=bound, current=current)
        self._retired += retired.events
        if len(retired.rows):
            self._write(memoryview(to_batch(retired.rows, self._schema).serialize()))

    def _end_segment(self) -> None:
        if self._file >= 0:
            with contextlib.suppress(OSError):  # a reader does without the end mark
                self._write(memoryview(END_OF_STREAM))
            self._abandon()

    def _write(self, data: memoryview) -> None:
        try:
            if os.fstat(self._file).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "the event file was deleted", str(self.path))
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
            self._size += written
            self.committed = (self.path, self._size)
        except OSError as error:
            self._recover(error)
            raise

    def _recover(self, error: OSError) -> None:
        """Cut a half-written message off; give the segment up where that is impossible or nothing is in it yet."""
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._abandon()
            return
        if self._size == 0 or error.errno == errno.ENOENT:
            self._abandon()

    def _abandon(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._file)
        self._file = -1


def _is_event(event: Any) -> bool:
    try:
        return len(event) == len(_COLUMNS) and all(-(1 << 63) <= int(v) < 1 << 63 and v == int(v) for v in event)
    except (TypeError, ValueError, OverflowError):
        return False
