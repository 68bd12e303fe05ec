"""The recorder: what the training thread touches. It appends tuples to a list; another thread does everything else.

Recording takes a fraction of a microsecond, no lock, and raises nothing, so it may stand in the innermost loop.
"""

import time
from types import TracebackType

from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.periodic import Bubbles

LONG_WAIT_NS = 3_000_000
"""A wait that took this long in the step before is worth telling ``bubbles`` of: telemetry's threads need a millisecond or two."""

_FIRST_USE = int(Flag.FIRST_USE)
_STEP = int(Op.STEP)


class Recorder:
    """Collects the events of one rank.

    Args:
        capacity: Events held while the drain thread is behind; what comes on top is dropped and counted in ``overflowed``.

    Attributes:
        step: The current step; -1 before the first.
        first_micro_batch: Added to the index of every micro-batch: under gradient accumulation a step has several batches.
        in_flight: ``(op, stage, micro_batch, start_ns)`` of the op that runs, or None. A plain attribute: assign it in a hot loop.
        bubbles: Told of long waits, so that telemetry works while this rank has nothing else to do.
        overflowed: Events dropped because the buffer was full.
        last_step_ns: Duration of the last step that ended; 0 before.
    """

    __slots__ = (
        "_append",
        "_capacity",
        "_first_use",
        "_rows",
        "_step_start_ns",
        "_steps_seen",
        "bubbles",
        "first_micro_batch",
        "in_flight",
        "last_step_ns",
        "overflowed",
        "step",
    )
    enabled = True

    def __init__(self, *, capacity: int = 1 << 18) -> None:
        # One list for ever: take() cuts its head off, which leaves a concurrent append alone; swapping lists would lose it.
        self._rows: list[tuple[int, ...]] = []
        self._append = self._rows.append
        self._capacity = capacity
        self._first_use = 0
        self._steps_seen = 0
        self._step_start_ns = 0
        self.step = -1
        self.first_micro_batch = 0
        self.in_flight: tuple[int, int, int, int] | None = None
        self.bubbles = Bubbles()
        self.overflowed = 0
        self.last_step_ns = 0

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
        """Add one event of the current step; the arguments are the columns of :class:`~pptoolkit.telemetry.events.Event`."""
        if len(self._rows) < self._capacity:
            if self.first_micro_batch and micro_batch >= 0:
                micro_batch += self.first_micro_batch
            self._append((self.step, stage, micro_batch, op, peer, start_ns, end_ns, bytes, memory_bytes, flags | self._first_use))
        else:
            self.overflowed += 1

    def record_event(self, event: tuple[int, ...]) -> None:
        """Add an event with its own step, e.g. one whose device times were resolved after the step had ended.

        The STEP event closes a step for the metrics: record its late ops first.
        """
        if len(self._rows) < self._capacity:
            self._append(event)
        else:
            self.overflowed += 1

    def span(self, op: Op, *, stage: int = -1, micro_batch: int = -1, peer: int = -1, bytes: int = 0, flags: int = 0) -> "Span":
        """Time a ``with`` block as one event; inside, the op counts as in flight."""
        return Span(self, op, stage, micro_batch, peer, bytes, flags)

    def begin_step(self, step: int, *, start_ns: int | None = None, first_use: bool = False) -> None:
        """Start step ``step``. The first step, and one with ``first_use``, marks its events with :attr:`Flag.FIRST_USE`."""
        self._first_use = _FIRST_USE if first_use or not self._steps_seen else 0
        self._steps_seen += 1
        self.step = step
        self._step_start_ns = time.monotonic_ns() if start_ns is None else start_ns

    def end_step(self, *, end_ns: int | None = None, memory_bytes: int = 0) -> int:
        """End the step with its STEP event; return its wall time in nanoseconds."""
        end = time.monotonic_ns() if end_ns is None else end_ns
        self.record(_STEP, -1, -1, -1, self._step_start_ns, end, 0, memory_bytes)
        self.in_flight = None
        self.last_step_ns = end - self._step_start_ns
        return self.last_step_ns

    def take(self, limit: int) -> list[tuple[int, ...]]:
        """Remove and return the oldest events, at most ``limit``. For the drain thread alone."""
        taken = self._rows[:limit]
        del self._rows[: len(taken)]
        return taken

    def __len__(self) -> int:
        return len(self._rows)


class Span:
    """One timed block; made by :meth:`Recorder.span`. ``bytes`` and ``memory_bytes`` may be set inside the block."""

    __slots__ = ("_flags", "_micro_batch", "_op", "_outer", "_peer", "_recorder", "_stage", "_start_ns", "bytes", "memory_bytes")

    def __init__(self, recorder: Recorder, op: Op, stage: int, micro_batch: int, peer: int, bytes: int, flags: int) -> None:
        self._recorder, self._op, self._stage, self._micro_batch, self._peer, self._flags = recorder, op, stage, micro_batch, peer, flags
        self.bytes = bytes
        self.memory_bytes = 0

    def __enter__(self) -> "Span":
        recorder = self._recorder
        self._outer = recorder.in_flight
        self._start_ns = start_ns = time.monotonic_ns()
        recorder.in_flight = (self._op, self._stage, self._micro_batch, start_ns)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        end_ns = time.monotonic_ns()
        recorder = self._recorder
        recorder.record(
            self._op, self._stage, self._micro_batch, self._peer, self._start_ns, end_ns, self.bytes, self.memory_bytes, self._flags
        )
        # After an exception the op stays in flight: the last heartbeat then says where the rank died.
        if kind is None:
            recorder.in_flight = self._outer


class NullRecorder(Recorder):
    """A recorder that keeps nothing: for training without telemetry, with no ``if`` at the call sites."""

    __slots__ = ()
    enabled = False

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
        """Do nothing."""

    def record_event(self, event: tuple[int, ...]) -> None:
        """Do nothing."""
