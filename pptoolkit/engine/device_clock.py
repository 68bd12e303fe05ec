"""Who times the ops of a rank: the host's clock on the CPU, events on the stream on a GPU (:mod:`pptoolkit.engine.event_clock`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from pptoolkit.engine.event_clock import EventClock
from pptoolkit.engine.layer_marks import LayerMarks, Span, layer_spans
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.recorder import Recorder

_SAMPLED = int(Flag.SAMPLED)


class HostClock:
    """Ops take the time that the host sees: right wherever a call returns when its work is done, as on the CPU.

    Attributes:
        source: What the event stream's metadata says of its times.
        record: Called as :meth:`Recorder.record`, about the op between the last two marks; here it is that very method: nothing
            stands in between.
    """

    source = "monotonic"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.record: Callable[..., None] = recorder.record

    def mark(self) -> None:
        """Say that a compute op begins."""

    def mark_end(self) -> None:
        """Say that it has been issued."""

    def layer_marks(self, layers: int) -> LayerMarks:
        """Return marks for the layers of one sampled micro-batch."""
        return LayerMarks(layers)

    def record_layers(self, op: Op, stage: int, micro_batch: int, marks: LayerMarks, span: Span, *, first: int) -> None:
        """Say that the last op recorded went through the layers from ``first`` on; ``span`` is what the host saw of it."""
        for layer, (start_ns, end_ns) in enumerate(layer_spans(op, marks, span, lambda mark: mark), start=first):
            self._recorder.record(op, stage, micro_batch, layer, start_ns, end_ns, 0, 0, _SAMPLED)

    def span(self, op: Op) -> AbstractContextManager[Any]:
        """Time what a ``with`` block issues as one op that belongs to no stage; it may be given ``bytes``."""
        return self._recorder.span(op)

    def settle(self, host_s: float) -> float:
        """Return the seconds that the step's passes computed, once their last op is issued; not a number where nobody timed them.

        Args:
            host_s: What the host saw of it.
        """
        return host_s

    def resolve(self) -> int:
        """Record what could not be timed before; return the nanoseconds of compute that were resolved."""
        return 0


class UntimedClock:
    """A GPU without telemetry: nobody asks for times, and those of the host would be wrong."""

    source = "none"

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.record: Callable[..., None] = recorder.record  # which keeps nothing

    def mark(self) -> None:
        """Nothing is timed."""

    def mark_end(self) -> None:
        """Likewise."""

    def layer_marks(self, layers: int) -> LayerMarks:
        return LayerMarks(layers)

    def record_layers(self, op: Op, stage: int, micro_batch: int, marks: LayerMarks, span: Span, *, first: int) -> None:
        """Nothing is kept."""

    def span(self, op: Op) -> AbstractContextManager[Any]:
        return self._recorder.span(op)

    def settle(self, host_s: float) -> float:
        return float("nan")

    def resolve(self) -> int:
        return 0

    def stamp(self) -> Any:
        """Nothing is timed."""

    def record_message(
        self, op: Op, stage: int, micro_batch: int, peer: int, begin: Any, end: Any, *, bytes: int = 0, flags: int = 0
    ) -> None:
        """Nothing is kept."""


StreamClock = EventClock | UntimedClock  # of a rank whose messages travel on streams
DeviceClock = HostClock | StreamClock


def make_device_clock(device: torch.device, recorder: Recorder) -> DeviceClock:
    """Return what times ops on ``device``; without telemetry nothing needs a stream's events."""
    if device.type != "cuda":
        return HostClock(recorder)
    if not recorder.enabled:
        return UntimedClock(recorder)
    with torch.cuda.device(device):
        return EventClock(recorder, lambda: torch.cuda.Event(enable_timing=True))


def clock_source(device: torch.device) -> str:
    """Return the ``source`` of the clock that will time ops on ``device``, for the metadata that is written before there is one."""
    return EventClock.source if device.type == "cuda" else HostClock.source
