"""Reading the events of a run, live or afterwards: the new complete batches of all ranks since the last look."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.telemetry.event_stream import EventStream
from pptoolkit.telemetry.events import EVENT_SCHEMA, SCHEMA_VERSION, Op
from pptoolkit.telemetry.run_directory import RunDirectory

_SEGMENT = re.compile(r"rank-(\d+)\.attempt-(\d+)\.seg-(\d+)\.arrows")
_MAP_FROM_BYTES = 8 << 20  # above this, map the file instead of reading it
_MANY_FILES = 8  # past this, every later pass over so many small pieces costs more than one copy
_EVERY_STEP = (int(Op.CLOCK), int(Op.PROBE))  # what alignment and links need whatever steps are asked for

READER_SCHEMA = pa.schema([*EVENT_SCHEMA, ("rank", pa.int32()), ("replica", pa.int16()), ("attempt", pa.int16())])
"""Columns of what a reader returns."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """What a reader could not read. ``notices`` say it in sentences."""

    bytes: int = 0
    files: int = 0
    notices: tuple[str, ...] = ()


@dataclass(slots=True)
class _Segment:
    path: str
    rank: int
    attempt: int
    number: int
    closed: bool = False
    stream: EventStream = field(default_factory=EventStream)

    def read(self) -> list[pa.RecordBatch]:
        """Return the batches that were completed since the last call."""
        if self.stream.foreign_version is not None:
            return []
        try:
            data = _read_from(self.path, self.stream.offset)
        except OSError:
            return []  # removed by retention, or not readable at this moment
        return self.stream.feed(data, closed=self.closed) if data is not None else []


class EventReader:
    """Reads one run's events; remembers per file how far it has read.

    A torn tail is left for the next call, garbage is skipped and counted, a rank or a folder that is not there yet is
    waited for.

    Args:
        run: The run directory; need not exist yet.
        ranks: Read only these ranks; default: all.
        attempt: Read only this attempt; default: all.
    """

    def __init__(self, run: RunDirectory, *, ranks: Sequence[int] | None = None, attempt: int | None = None) -> None:
        self._run = run
        self._ranks = frozenset(ranks) if ranks is not None else None
        self._attempt = attempt
        self._segments: dict[str, _Segment] = {}
        self._read_once: dict[str, _Segment] = {}

    def poll(self, *, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the events that became complete since the last call, with rank, replica and attempt; maybe none."""
        return self._collect(self._segments, None, columns)

    def read_all(self, *, steps: tuple[int, int] | None = None, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all events that are complete by now; :meth:`poll` goes on from where it was.

        Args:
            steps: First step and the step after the last; clock and probe events are returned whatever their step.
            columns: Names of the columns wanted; default: all of ``READER_SCHEMA``.
        """
        fresh: dict[str, _Segment] = {}
        table = self._collect(fresh, steps, columns)
        self._read_once = fresh
        return table

    def scan(self, *, steps: tuple[int, int] | None = None, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """Yield all events that are complete by now, file by file, so that memory holds one file at a time.

        Args:
            steps: As for :meth:`read_all`.
            columns: Likewise.
        """
        schema = _schema_of(columns)
        found: dict[str, _Segment] = {}
        self._find(found)
        for segment in _in_order(found):
            batches = segment.read()
            if batches:
                yield _to_table([(segment, batches)], steps, schema)
            del batches

    @property
    def skipped(self) -> Skipped:
        """What could not be read so far, by :meth:`poll` or, if that was never called, by :meth:`read_all`."""
        segments = (self._segments or self._read_once).values()
        damaged = [s for s in segments if s.stream.skipped_bytes or s.stream.foreign_version is not None]
        return Skipped(sum(s.stream.skipped_bytes for s in damaged), len(damaged), tuple(_notice(s) for s in damaged))

    def _collect(self, segments: dict[str, _Segment], steps: tuple[int, int] | None, columns: Sequence[str] | None) -> pa.Table:
        schema = _schema_of(columns)
        self._find(segments)
        read = [(segment, segment.read()) for segment in _in_order(segments)]
        return _to_table([(segment, batches) for segment, batches in read if batches], steps, schema)

    def _find(self, segments: dict[str, _Segment]) -> None:
        try:
            names = set(os.listdir(self._run.events_path))
        except OSError:
            return
        fresh = [match for match in map(_SEGMENT.fullmatch, names - segments.keys()) if match is not None]
        for match in fresh:
            rank, attempt, number = (int(group) for group in match.groups())
            if (self._ranks is None or rank in self._ranks) and self._attempt in (None, attempt):
                segments[match[0]] = _Segment(f"{self._run.events_path}/{match[0]}", rank, attempt, number)
        if not fresh:
            return
        # Who writes segment n + 1 has finished with n; a new attempt means that the old one's processes are gone.
        newest = {s.rank: (-1, -1) for s in segments.values()}
        for s in segments.values():
            newest[s.rank] = max(newest[s.rank], (s.attempt, s.number))
        for s in segments.values():
            s.closed = (s.attempt, s.number) < newest[s.rank]


def _schema_of(columns: Sequence[str] | None) -> pa.Schema:
    return READER_SCHEMA if columns is None else pa.schema([READER_SCHEMA.field(name) for name in columns])


def _in_order(segments: dict[str, _Segment]) -> list[_Segment]:
    return sorted(segments.values(), key=lambda s: (s.rank, s.attempt, s.number))


def _read_from(path: str, offset: int) -> pa.Buffer | None:
    """Return the bytes of a file from ``offset`` on, or None where there are none."""
    # With a thousand ranks these few calls are most of a look, so none is made twice.
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        length = os.fstat(file).st_size - offset
        if 0 < length < _MAP_FROM_BYTES:
            return pa.py_buffer(os.pread(file, length, offset))
    finally:
        os.close(file)
    if length <= 0:
        return None
    with pa.memory_map(path) as source:
        return source.read_buffer().slice(offset, length)


def _to_table(read: list[tuple[_Segment, list[pa.RecordBatch]]], steps: tuple[int, int] | None, schema: pa.Schema) -> pa.Table:
    """Return what was read of all files as one table: with a thousand ranks, a table a file would take longer than the reading."""
    if not read:
        return schema.empty_table()
    # All batches have the one event schema; the metadata of two ranks differs and would keep them from joining.
    plain = EVENT_SCHEMA.remove_metadata()
    batches = [batch.replace_schema_metadata(None) for _, several in read for batch in several]
    table = pa.Table.from_batches(batches, plain)
    table = table.combine_chunks() if len(read) > _MANY_FILES else table
    rows = [sum(batch.num_rows for batch in several) for _, several in read]
    values = {
        "rank": [segment.rank for segment, _ in read],
        "replica": [int(segment.stream.metadata.get("replica", "0")) for segment, _ in read],
        "attempt": [segment.attempt for segment, _ in read],
    }
    for name, of_file in values.items():
        if name in schema.names:
            column = READER_SCHEMA.field(name)
            table = table.append_column(column, pa.array(np.repeat(of_file, rows), column.type))
    if steps is not None:
        wanted = pc.and_(pc.greater_equal(table["step"], steps[0]), pc.less(table["step"], steps[1]))
        table = table.filter(pc.or_(wanted, pc.is_in(table["op"], pa.array(_EVERY_STEP, pa.uint8()))))
    return table.select(schema.names)


def _notice(segment: _Segment) -> str:
    stream = segment.stream
    if stream.foreign_version is not None:
        return (
            f"{segment.path} has event schema {stream.foreign_version}, and this release reads {SCHEMA_VERSION}; "
            "read the run with the release that wrote it"
        )
    return f"{segment.path}: {stream.skipped_bytes} damaged bytes were skipped; the events in them are lost"
