"""Timing by events on a GPU's stream, read once the schedule is over.

On a GPU a call returns when its kernels are queued, so the host's clock would time the queueing. An event that is recorded
into the stream before and after an op costs about a microsecond and makes nobody wait. When the last op has been issued, the
events are read, and an anchor lays them on the monotonic clock that everything else is timed by:

    host    ..anchor (seen to be over at t)...... last op issued: read
    stream  --A----s1==op==e1--s2==op==e2-------A'--    time of s1 = t + elapsed(A, s1)
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from pptoolkit.engine.layer_marks import LayerMarks, Span, layer_spans
from pptoolkit.telemetry.events import COMPUTE_OPS, Flag, Op
from pptoolkit.telemetry.recorder import Recorder

_SAMPLED = int(Flag.SAMPLED)
_COMPUTE = frozenset(int(op) for op in COMPUTE_OPS)


class StreamEvent(Protocol):
    """A ``torch.cuda.Event``, as far as it is used here."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Any, /) -> float:
        """Milliseconds from this event to ``end_event``, both being over."""
        ...


class _TimedOp(NamedTuple):
    """What is known of an op when it was issued."""

    op: int
    stage: int
    micro_batch: int
    peer: int
    begin: StreamEvent
    end: StreamEvent
    bytes: int = 0
    memory_bytes: int = 0
    flags: int = 0


class _TimedLayers(NamedTuple):
    whole: _TimedOp  # the op that went through them
    op: Op
    marks: LayerMarks
    first: int


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
        self._used: list[StreamEvent] = []  # in the order in which the stream comes to them
        self._begun: StreamEvent | None = None
        self._ended: StreamEvent | None = None
        self._ops: list[_TimedOp] = []
        self._layers: list[_TimedLayers] = []
        self._anchor = make_event()
        self._anchor_ns = 0
        self._last_wait_ns = 0
        self._set_anchor()

    def mark(self) -> None:
        self._begun = self.stamp()

    def mark_end(self) -> None:
        """Say that the op has been issued; what is queued from here on is no part of it."""
        self._ended = self.stamp()

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
        number = self._number(micro_batch)
        self._ops.append(_TimedOp(op, stage, number, peer, self._begun, self._ended, bytes, memory_bytes, flags))
        self._begun = self._ended = None

    def layer_marks(self, layers: int) -> LayerMarks:
        return LayerMarks(layers, note=self.stamp)

    def record_layers(self, op: Op, stage: int, micro_batch: int, marks: LayerMarks, span: Span, *, first: int) -> None:
        self._layers.append(_TimedLayers(self._ops[-1], op, marks, first))

    def span(self, op: Op) -> AbstractContextManager[Any]:
        return _StreamSpan(self, self._recorder, op)

    def stamp(self) -> StreamEvent:
        """Return an event that is over once everything queued so far is."""
        event = self._free.pop() if self._free else self._make_event()
        self._used.append(event)
        event.record()
        return event

    def record_message(
        self, op: Op, stage: int, micro_batch: int, peer: int, begin: StreamEvent, end: StreamEvent, *, bytes: int = 0, flags: int = 0
    ) -> None:
        self._ops.append(_TimedOp(op, stage, self._number(micro_batch), peer, begin, end, bytes, 0, flags))

    def settle(self, host_s: float) -> float:
        return self.resolve() / 1e9

    def resolve(self) -> int:
        """Record the ops with their device times; waits until the stream has come to the last of them.

        A trainer calls it twice a step: when the schedule's last op is issued, where the loss is read anyway, and after the
        optimizer. Call it before the recorder's ``end_step``, so that the ops belong to their step.
        """
        if not self._used:
            return 0
        self._recorder.bubbles.announce(self._last_wait_ns)
        before_ns = time.monotonic_ns()
        self._used[-1].synchronize()
        self._last_wait_ns = time.monotonic_ns() - before_ns
        rows = [self._row(op) for op in self._ops] + [row for layers in self._layers for row in self._layer_rows(layers)]
        for row in sorted(rows, key=lambda row: row[4:6]):  # by begin and end: a message is known before the op that made it
            self._recorder.record(*row)
        self._ops.clear()
        self._layers.clear()
        self._free += self._used
        self._used.clear()
        # Anew each time: the elapsed time is a float of single precision, sharp only over seconds.
        self._set_anchor()
        return sum(row[5] - row[4] for row in rows if row[0] in _COMPUTE)

    def _row(self, op: _TimedOp) -> tuple[int, ...]:
        start_ns = self._at_ns(op.begin)
        end_ns = max(start_ns, self._at_ns(op.end))
        return op.op, op.stage, op.micro_batch, op.peer, start_ns, end_ns, op.bytes, op.memory_bytes, op.flags

    def _layer_rows(self, layers: _TimedLayers) -> list[tuple[int, ...]]:
        whole = layers.whole
        spans = layer_spans(layers.op, layers.marks, (self._at_ns(whole.begin), self._at_ns(whole.end)), self._at_ns)
        return [
            (int(layers.op), whole.stage, whole.micro_batch, layer, start_ns, max(start_ns, end_ns), 0, 0, _SAMPLED)
            for layer, (start_ns, end_ns) in enumerate(spans, start=layers.first)
        ]

    def _at_ns(self, event: StreamEvent) -> int:
        return self._anchor_ns + round(self._anchor.elapsed_time(event) * 1e6)

    def _number(self, micro_batch: int) -> int:
        """Return the index in the step: under accumulation the recorder counts on, but has moved on when the op is resolved."""
        return micro_batch + self._recorder.first_micro_batch if micro_batch >= 0 else micro_batch

    def _set_anchor(self) -> None:
        before_ns = time.monotonic_ns()
        self._anchor.record()
        self._anchor.synchronize()
        self._anchor_ns = (before_ns + time.monotonic_ns()) // 2


class _StreamSpan:
    """One block on the stream; made by :meth:`EventClock.span`. ``bytes`` may be set inside the block."""

    def __init__(self, clock: EventClock, recorder: Recorder, op: Op) -> None:
        self._clock, self._recorder, self._op = clock, recorder, op
        self.bytes = 0

    def __enter__(self) -> "_StreamSpan":
        self._outer = self._recorder.in_flight
        self._recorder.in_flight = (self._op, -1, -1, time.monotonic_ns())
        self._begin = self._clock.stamp()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:  # else the op stays in flight: the last heartbeat then says where the rank died
            self._recorder.in_flight = self._outer
            self._clock.record_message(self._op, -1, -1, -1, self._begin, self._clock.stamp(), bytes=self.bytes)
