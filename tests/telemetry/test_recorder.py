import threading

import pytest

from pptoolkit.telemetry import Event, Flag, NullRecorder, Op, Recorder


def events_of(recorder: Recorder) -> list[Event]:
    return [Event(*row) for row in recorder.take(1 << 30)]


def test_a_step_is_recorded_with_its_ops_inside() -> None:
    recorder = Recorder()
    recorder.begin_step(7)
    with recorder.span(Op.RECV, stage=1, micro_batch=2, peer=0, bytes=64):
        pass
    recorder.record(Op.FORWARD, 1, 2, -1, 100, 150, 0, 4096, Flag.SAMPLED)
    wall_ns = recorder.end_step()
    receive, forward, step = events_of(recorder)
    assert (receive.step, receive.op, receive.stage, receive.micro_batch, receive.peer, receive.bytes) == (7, Op.RECV, 1, 2, 0, 64)
    assert (forward.start_ns, forward.end_ns, forward.memory_bytes) == (100, 150, 4096)
    assert step.op == Op.STEP
    assert step.end_ns - step.start_ns == wall_ns == recorder.last_step_ns
    assert step.start_ns <= receive.start_ns <= receive.end_ns <= step.end_ns


def test_the_first_step_and_one_of_a_new_shape_are_marked() -> None:
    recorder = Recorder()
    for step, first_use in ((5, False), (6, False), (7, True), (8, False)):
        recorder.begin_step(step, first_use=first_use)
        recorder.record(Op.FORWARD, 0, 0, -1, 0, 1, flags=Flag.SAMPLED)
        recorder.end_step()
    marks = {(e.step, Flag(e.flags)) for e in events_of(recorder) if e.op == Op.FORWARD}
    assert marks == {(5, Flag.SAMPLED | Flag.FIRST_USE), (6, Flag.SAMPLED), (7, Flag.SAMPLED | Flag.FIRST_USE), (8, Flag.SAMPLED)}


def test_a_full_buffer_drops_the_newest_and_counts() -> None:
    recorder = Recorder(capacity=3)
    for m in range(5):
        recorder.record(Op.FORWARD, 0, m, -1, 0, 1)
    recorder.record_event(Event(0, 0, 9, Op.FORWARD, -1, 0, 1, 0, 0, 0))
    assert recorder.overflowed == 3
    assert [e.micro_batch for e in events_of(recorder)] == [0, 1, 2]
    recorder.record(Op.FORWARD, 0, 5, -1, 0, 1)
    assert [e.micro_batch for e in events_of(recorder)] == [5]


def test_the_op_in_flight_follows_spans_and_their_nesting() -> None:
    recorder = Recorder()
    assert recorder.in_flight is None
    with recorder.span(Op.EVAL), recorder.span(Op.FORWARD, stage=2, micro_batch=3):
        assert recorder.in_flight is not None
        assert recorder.in_flight[:3] == (Op.FORWARD, 2, 3)
    assert recorder.in_flight is None


def test_an_exception_leaves_its_op_in_flight_and_is_recorded() -> None:
    recorder = Recorder()
    with pytest.raises(ZeroDivisionError), recorder.span(Op.BACKWARD, stage=1, micro_batch=3):
        _ = 1 / 0
    assert recorder.in_flight is not None
    assert recorder.in_flight[:3] == (Op.BACKWARD, 1, 3)
    assert [e.op for e in events_of(recorder)] == [Op.BACKWARD]


def test_an_event_resolved_later_keeps_its_own_step() -> None:
    recorder = Recorder()
    recorder.begin_step(1)
    recorder.record_event(Event(0, 0, 0, Op.FORWARD, -1, 5, 9, 0, 0, 0))
    assert [e.step for e in events_of(recorder)] == [0]


def test_nothing_is_lost_or_doubled_while_another_thread_takes() -> None:
    recorder = Recorder()
    total = 50_000
    taken: list[tuple[int, ...]] = []
    done = threading.Event()

    def take() -> None:
        while not done.is_set() or len(recorder):
            taken.extend(recorder.take(97))

    thread = threading.Thread(target=take)
    thread.start()
    for i in range(total):
        recorder.record(Op.FORWARD, 0, 0, -1, i, i)
    done.set()
    thread.join()
    assert [Event(*row).start_ns for row in taken] == list(range(total))


def test_the_null_recorder_has_the_same_interface_and_keeps_nothing() -> None:
    recorder = NullRecorder()
    recorder.begin_step(0)
    with recorder.span(Op.FORWARD, stage=0, micro_batch=0):
        recorder.record(Op.SEND, 0, 0, 1, 0, 1)
    recorder.record_event(Event(0, 0, 0, Op.FORWARD, -1, 0, 1, 0, 0, 0))
    assert recorder.end_step() >= 0
    assert (len(recorder), recorder.overflowed, recorder.enabled, recorder.step) == (0, 0, False, 0)
