"""Who times an op: the host's clock, or on a GPU a pair of events on its stream, read once the step is over.

On a GPU a call returns when its kernels are queued, so the host's clock would time the queueing. An event that is recorded
into the stream before and after an op costs about a microsecond and makes nobody wait. When the step has ended, the events are
read, and an anchor lays them on the monotonic clock that everything else is timed by:

    host    ..anchor (seen to be over at t)............ step ends: read
    stream  --A----s1==op==e1--s2==op==e2-------A'--    time of s1 = t + elapsed(A, s1)
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch

from pptoolkit.telemetry.recorder import Recorder


class TimedOp(NamedTuple):
    """What is known of an op when it was issued."""

    op: int
    stage: int
    micro_batch: int
    bytes: int
    memory_bytes: int
    flags: int


class HostClock:
    """Ops take the time that the host sees: right wherever a call returns when its work is done, as on the CPU.

    Attributes:
        source: What the event stream's metadata says of its times.
        record: Called as :meth:`Recorder.record`, and here it is that very method: nothing stands in between.
    """

    source = "monotonic"

    def __init__(self, recorder: Recorder) -> None:
        self.record: Callable[..., None] = recorder.record

    def mark(self) -> None:
        """Say that an op begins."""

    def mark_end(self) -> None:
        """Say that it has been issued."""

    def resolve(self) -> int:
        """Record what could not be timed before the step's end; return the nanoseconds of compute that were resolved."""
        return 0


class StreamEvent(Protocol):
    """A ``torch.cuda.Event``, as far as it is used here."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to ``end_event``, both being over."""
        ...


class EventClock:
    """Ops take the time that their stream spends on them.

    Args:
        recorder: Where the ops go, at :meth:`resolve`.
        make_event: Makes an event that times, on the current stream of the device.
    """

    source = "cuda-events"

    def __init__(self, recorder: Recorder, make_event: Callable[[], StreamEvent]) -> None:
        self._recorder, self._make_event = recorder, make_event
        self._free: list[StreamEvent] = []  # events are reused: making one takes longer than recording one
        self._begun: StreamEvent | None = None
        self._ended: StreamEvent | None = None
        self._pending: list[tuple[TimedOp, StreamEvent, StreamEvent]] = []
        self._anchor = make_event()
        self._anchor_ns = 0
        self._set_anchor()

    def mark(self) -> None:
        """Say that an op begins."""
        self._begun = self._take()
        self._begun.record()

    def mark_end(self) -> None:
        """Say that it has been issued; what is queued from here on is no part of it."""
        self._ended = self._take()
        self._ended.record()

    def record(
        self,
        op: int,
        stage: int,
        micro_batch: int,
        peer: int,
        start_ns: int,
        end_ns: int,
        bytes: int = 0,
        memory_bytes: int = 0,
        flags: int = 0,
    ) -> None:
        """Say what the op between the last two marks was; the host's own times are not used."""
        assert self._begun is not None, "mark() comes first"
        assert self._ended is not None, "mark_end() comes first"
        self._pending.append((TimedOp(op, stage, micro_batch, bytes, memory_bytes, flags), self._begun, self._ended))
        self._begun = self._ended = None

    def resolve(self) -> int:
        """Record the step's ops with their device times; the only wait, after the step's last op was issued.

        Call it before the recorder's ``end_step``, so that the ops belong to their step.
        """
        if not self._pending:
            return 0
        self._pending[-1][2].synchronize()
        total = 0
        for op, begin, end in self._pending:
            start_ns = self._anchor_ns + round(self._anchor.elapsed_time(begin) * 1e6)
            end_ns = max(start_ns, self._anchor_ns + round(self._anchor.elapsed_time(end) * 1e6))
            self._recorder.record(op.op, op.stage, op.micro_batch, -1, start_ns, end_ns, op.bytes, op.memory_bytes, op.flags)
            total += end_ns - start_ns
            self._free += (begin, end)
        self._pending.clear()
        # Anew for each step: the elapsed time is a float of single precision, sharp only over seconds.
        self._set_anchor()
        return total

    def _set_anchor(self) -> None:
        before_ns = time.monotonic_ns()
        self._anchor.record()
        self._anchor.synchronize()
        self._anchor_ns = (before_ns + time.monotonic_ns()) // 2

    def _take(self) -> StreamEvent:
        return self._free.pop() if self._free else self._make_event()


DeviceClock = HostClock | EventClock


def make_device_clock(device: torch.device, recorder: Recorder) -> DeviceClock:
    """Return what times ops on ``device``; without telemetry nothing needs a stream's events."""
    if device.type != "cuda" or not recorder.enabled:
        return HostClock(recorder)
    with torch.cuda.device(device):
        return EventClock(recorder, lambda: torch.cuda.Event(enable_timing=True))


def allocator_bytes(device: torch.device) -> Mapping[str, int]:
    """Return a CUDA device's allocator figures by kind, as telemetry's memory source; the peak is of the time since the last call."""
    stats = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {
        "allocated": int(stats.get("allocated_bytes.all.current", 0)),
        "reserved": int(stats.get("reserved_bytes.all.current", 0)),
        "peak_allocated": int(stats.get("allocated_bytes.all.peak", 0)),
        "peak_reserved": int(stats.get("reserved_bytes.all.peak", 0)),
    }
