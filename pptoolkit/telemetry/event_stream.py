"""Reading one event file that is being written, was cut off, or has garbage in it. Works on bytes; opens nothing.

An Arrow IPC stream is a row of messages, each  ffffffff | metadata length | metadata | body.  The metadata says how
long the body is, so a reader can tell a torn tail (wait for the rest) from garbage (look for the next message).
"""

import struct
from dataclasses import dataclass, field
from enum import Enum, auto

import pyarrow as pa

from pptoolkit.telemetry.events import EVENT_SCHEMA, SCHEMA_VERSION

_MARK = b"\xff\xff\xff\xff"
_MAX_METADATA = 1 << 16
_MAX_BODY = 1 << 30
_LARGE = 1 << 20


class Found(Enum):
    """What stands at a place in the file."""

    MESSAGE = auto()
    END = auto()
    TORN = auto()  # the beginning of a message: the rest has not arrived
    GARBAGE = auto()


@dataclass(slots=True)
class EventStream:
    """State of reading one file: feed it what comes after ``offset``.

    Attributes:
        offset: Bytes that are read or skipped for good.
        skipped_bytes: Garbage, and the torn tail of a file that nobody writes any more.
        metadata: The stream's metadata, once its head was read.
        foreign_version: Schema version of a stream that this release cannot read.
    """

    offset: int = 0
    skipped_bytes: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    foreign_version: str | None = None
    _schema: pa.Schema | None = None

    def feed(self, data: pa.Buffer, *, closed: bool) -> list[pa.RecordBatch]:
        """Return the new complete batches in ``data``, the file's bytes from ``offset`` on.

        Args:
            data: May end anywhere.
            closed: Nothing will be appended any more, so a torn tail is lost.
        """
        batches: list[pa.RecordBatch] = []
        view = memoryview(data)
        at = self._take_whole(data, view, batches) if self.offset == 0 and len(view) >= _LARGE else 0
        while at < len(view) and self.foreign_version is None:
            found, end = locate(view, at)
            if found is Found.MESSAGE and not self._take(data.slice(at, end - at), batches):
                found = Found.GARBAGE
            if found is Found.TORN and not closed:
                break
            if found in (Found.TORN, Found.GARBAGE):
                end = _next_candidate(view, at + 1, closed=closed)
                self.skipped_bytes += end - at
            at = end
        self.offset += at
        return batches

    def _take_whole(self, data: pa.Buffer, view: memoryview, batches: list[pa.RecordBatch]) -> int:
        """Read the undamaged front of a large file in one go, many times faster than by message; return where it ends, or 0."""
        end, at = 0, 0
        while at < len(view):
            found, at = locate(view, at)
            if found is not Found.MESSAGE:
                break
            end = at
        try:
            with pa.ipc.open_stream(data.slice(0, end)) as stream:
                whole = list(stream)
            for batch in whole:
                batch.validate()
        except (pa.ArrowException, OSError, EOFError, ValueError):
            return 0  # damage inside a message: the careful way says where
        self._take_schema(stream.schema)
        if self.foreign_version is not None:
            return 0
        batches += whole
        return end

    def _take(self, message_bytes: pa.Buffer, batches: list[pa.RecordBatch]) -> bool:
        try:
            message = pa.ipc.read_message(pa.BufferReader(message_bytes))
            if message.type == "schema":
                self._take_schema(pa.ipc.read_schema(message))
                return True
            # A damaged head is no reason to lose the batches behind it: all files share one schema.
            batch = pa.ipc.read_record_batch(message, self._schema or EVENT_SCHEMA)
            batch.validate()
        except (pa.ArrowException, OSError, EOFError, ValueError):
            return False
        batches.append(batch)
        return True

    def _take_schema(self, schema: pa.Schema) -> None:
        raw = schema.metadata or {}
        metadata = {k.decode(errors="replace").removeprefix("pptoolkit."): v.decode(errors="replace") for k, v in raw.items()}
        version = metadata.get("schema_version", "unknown")
        if version != str(SCHEMA_VERSION) or not schema.equals(EVENT_SCHEMA, check_metadata=False):
            self.foreign_version = version
            return
        self.metadata, self._schema = metadata, EVENT_SCHEMA


def locate(view: memoryview, at: int) -> tuple[Found, int]:
    """Return what stands at ``at`` and, for a message or an end mark, where it ends."""
    head = bytes(view[at : at + 8])
    if not head.startswith(_MARK[: len(head)]):
        return Found.GARBAGE, at
    if len(head) < 8:
        return Found.TORN, at
    (length,) = struct.unpack_from("<i", head, 4)
    if length == 0:
        return Found.END, at + 8
    if not 0 < length <= _MAX_METADATA or length % 8:
        return Found.GARBAGE, at
    if at + 8 + length > len(view):
        return Found.TORN, at
    body = _body_length(bytes(view[at + 8 : at + 8 + length]))
    if body is None:
        return Found.GARBAGE, at
    end = at + 8 + length + body
    return (Found.MESSAGE, end) if end <= len(view) else (Found.TORN, at)


def _next_candidate(view: memoryview, at: int, *, closed: bool) -> int:
    """Return where the next message may begin, or the end of ``view``."""
    # bytes() of the rest is a copy, made only where something is damaged.
    rest = bytes(view[at:])
    place = rest.find(_MARK)
    while place >= 0:
        found, _ = locate(view, at + place)
        if found in (Found.MESSAGE, Found.END) or (found is Found.TORN and not closed):
            return at + place
        place = rest.find(_MARK, place + 1)
    # Without a candidate, the last bytes may still be the first ones of a mark that is being written.
    partial = 0 if closed else next((n for n in (3, 2, 1) if rest.endswith(_MARK[:n])), 0)
    return len(view) - partial


def _body_length(metadata: bytes) -> int | None:
    """Read ``bodyLength``, field 3 of Arrow's flatbuffer table Message; None if the bytes cannot be one."""
    try:
        (table,) = struct.unpack_from("<I", metadata, 0)
        (back,) = struct.unpack_from("<i", metadata, table)
        vtable = table - back
        if vtable < 0:
            return None
        (vtable_bytes,) = struct.unpack_from("<H", metadata, vtable)
        if vtable_bytes < 12:
            return 0  # the field is at its default, as in a schema message
        (place,) = struct.unpack_from("<H", metadata, vtable + 10)
        if place == 0:
            return 0
        (length,) = struct.unpack_from("<q", metadata, table + place)
    except struct.error:
        return None
    return int(length) if 0 <= length <= _MAX_BODY else None
