"""Who times an op: the host on the CPU, events on the stream on a GPU, laid on the monotonic clock after the step."""

import math
import time

import pytest
import torch

from pptoolkit.engine.device_clock import HostClock, UntimedClock, make_device_clock
from pptoolkit.engine.event_clock import EventClock
from pptoolkit.engine.memory import allocator_bytes
from pptoolkit.telemetry import NullRecorder, Op, Recorder


class Stream:
    """A device that works in its own time: ops take as long as told, and nothing is known before it is waited for."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.waits = 0

    def event(self) -> "FakeEvent":
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, stream: Stream) -> None:
        self._stream, self.at_ms, self.over = stream, 0.0, False

    def record(self) -> None:
        self.at_ms, self.over = self._stream.now_ms, False

    def synchronize(self) -> None:
        self._stream.waits += 1
        self.over = True

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        return end_event.at_ms - self.at_ms


def run_ops(clock: EventClock, stream: Stream, lengths_ms: list[float]) -> None:
    for m, length in enumerate(lengths_ms):
        stream.now_ms += 1.0  # idle
        clock.mark()
        stream.now_ms += length
        clock.mark_end()
        clock.record(Op.FORWARD, 2, m, -1, 0, 1, 0, 77, 1)


def test_on_the_cpu_the_recorder_itself_is_called() -> None:
    recorder = Recorder()
    clock = make_device_clock(torch.device("cpu"), recorder)
    assert isinstance(clock, HostClock)
    assert clock.record == recorder.record
    clock.mark()
    clock.mark_end()
    clock.record(Op.FORWARD, 0, 1, -1, 10, 20)
    assert clock.resolve() == 0
    assert [event[3:7] for event in recorder.take(9)] == [(Op.FORWARD, -1, 10, 20)]


def test_ops_get_the_streams_times_on_the_monotonic_clock_and_nothing_waits_inside_the_step() -> None:
    stream, recorder = Stream(), Recorder()
    before = time.monotonic_ns()
    clock = EventClock(recorder, stream.event)
    after = time.monotonic_ns()
    waits = stream.waits
    recorder.begin_step(0)
    run_ops(clock, stream, [3.0, 5.0])
    assert (stream.waits, len(recorder)) == (waits, 0), "issued, not waited for, not yet recorded"
    assert clock.resolve() == 8_000_000
    first, second = recorder.take(9)
    assert (first[6] - first[5], second[6] - second[5]) == (3_000_000, 5_000_000)
    assert second[5] - first[6] == 1_000_000
    assert before <= first[5] - 1_000_000 <= after, "the anchor was over somewhere between these two"
    assert (first[1], first[2], first[8], first[9] & 1) == (2, 0, 77, 1)


def test_each_step_has_its_own_anchor_and_events_are_used_again() -> None:
    stream, recorder, made = Stream(), Recorder(), []

    def make() -> FakeEvent:
        made.append(stream.event())
        return made[-1]

    clock = EventClock(recorder, make)
    for step in range(5):
        recorder.begin_step(step)
        run_ops(clock, stream, [2.0, 2.0])
        clock.resolve()
        recorder.end_step()
        stream.now_ms += 1e9  # days later; a float of single precision could not tell microseconds any more
    assert len(made) == 1 + 4
    events = [event for event in recorder.take(99) if event[3] == Op.FORWARD]
    assert {event[6] - event[5] for event in events} == {2_000_000}
    assert clock.resolve() == 0


def test_micro_batches_count_on_from_pass_to_pass_although_they_are_recorded_after_the_last_one() -> None:
    stream, recorder = Stream(), Recorder()
    clock = EventClock(recorder, stream.event)
    for first in (0, 2):
        recorder.first_micro_batch = first
        run_ops(clock, stream, [1.0, 1.0])
    recorder.first_micro_batch = 0
    assert clock.settle(host_s=5.0) == pytest.approx(0.004), "what the stream computed, not what the host saw"
    assert [event[2] for event in recorder.take(9)] == [0, 1, 2, 3]


def test_the_optimizer_takes_the_time_of_the_stream_and_a_layer_the_time_between_its_marks() -> None:
    stream, recorder = Stream(), Recorder()
    clock = EventClock(recorder, stream.event)
    clock.mark()
    marks = clock.layer_marks(2)
    for length in (3.0, 4.0):
        marks.begin()
        stream.now_ms += length
    clock.mark_end()
    clock.record(Op.FORWARD, 0, 0, -1, 0, 0)
    clock.record_layers(Op.LAYER_FORWARD, 0, 0, marks, (0, 0), first=5)
    with clock.span(Op.OPTIMIZER):
        stream.now_ms += 2.0
    assert clock.resolve() == 7_000_000, "the optimizer is no computing of the schedule"
    events = {(Op(event[3]), event[4]): event[6] - event[5] for event in recorder.take(9)}
    assert events == {
        (Op.FORWARD, -1): 7_000_000,
        (Op.LAYER_FORWARD, 5): 3_000_000,
        (Op.LAYER_FORWARD, 6): 4_000_000,
        (Op.OPTIMIZER, -1): 2_000_000,
    }


def test_without_telemetry_nobody_times_a_gpu_and_nothing_is_claimed() -> None:
    clock = UntimedClock(NullRecorder())
    assert math.isnan(clock.settle(host_s=0.1))
    with clock.span(Op.OPTIMIZER) as span:
        span.bytes = 3
    assert clock.resolve() == 0


@pytest.mark.gpu
def test_a_kernel_is_timed_on_its_stream_and_not_when_it_was_queued() -> None:
    device, recorder = torch.device("cuda"), Recorder()
    clock = make_device_clock(device, recorder)
    x = torch.randn(4096, 4096, device=device)
    torch.cuda.synchronize()
    recorder.begin_step(0)
    clock.mark()
    queued = time.monotonic_ns()
    for _ in range(20):
        x = x @ x / 64
    queued = time.monotonic_ns() - queued
    clock.mark_end()
    clock.record(Op.FORWARD, 0, 0, -1, 0, 0)
    clock.resolve()
    (event,) = recorder.take(9)
    assert event[6] - event[5] > queued
    assert abs(event[6] - time.monotonic_ns()) < 10_000_000_000


@pytest.mark.gpu
def test_the_allocators_figures_are_those_of_the_device() -> None:
    device = torch.device("cuda")
    kept = torch.empty(1 << 20, device=device)
    found = allocator_bytes(device)
    assert found["reserved"] >= found["allocated"] >= kept.numel() * 4
    assert found["retries"] >= 0
