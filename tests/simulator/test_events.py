"""Simulated steps as events: complete, consistent and continuous."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.schedule import ActionKind, Schedule, build_schedule
from pptoolkit.simulator import Costs, EventSettings, MemoryCosts, equal_costs, simulate_steps, to_events
from pptoolkit.telemetry.events import COMPUTE_OPS, Event, Op
from tests.schedule.sizes import TRAINING, schedules
from tests.simulator.random_costs import costs_for

OUTSIDE_SCHEDULE = (Op.DATA, Op.OPTIMIZER, Op.REDUCE)
INSIDE_SCHEDULE = (*COMPUTE_OPS, Op.RECV, Op.SEND)
TWO = build_schedule("1f1b", ranks=2, micro_batches=2)
COSTS = Costs(
    op_s={(s, kind): 0.010 for s in (0, 1) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD)},
    transfer_s={(0, 1): 0.001, (1, 0): 0.002},
    send_s=0.0005,
    before_s={0: 0.003},
    after_s={0: 0.004, 1: 0.004},
)


def only(events: list[Event], *ops: Op) -> list[Event]:
    return [event for event in events if event.op in ops]


def picture(events: list[Event]) -> str:
    """Names and milliseconds, leaving out the instants."""
    return "\n".join(
        f"{Op(e.op).name.lower()} {e.stage} {e.micro_batch} {e.peer} {e.start_ns / 1e6:g} {e.end_ns / 1e6:g}"
        for e in events
        if e.op != Op.RECV_POST
    )


def test_a_step_of_one_rank_reads_like_a_recorders() -> None:
    rank_1 = to_events(simulate_steps(TWO, [COSTS]))[1]
    assert picture(rank_1) == "\n".join(
        [
            "recv 1 0 0 0 14.5",  # rank 0: 3 data, 10 forward, 0.5 send; the link: 1
            "forward 1 0 -1 14.5 24.5",
            "backward 1 0 -1 24.5 34.5",
            "send 1 0 0 34.5 35",
            "recv 1 1 0 35 35",  # had arrived earlier
            "forward 1 1 -1 35 45",
            "backward 1 1 -1 45 55",
            "send 1 1 0 55 55.5",
            "schedule -1 -1 -1 0 55.5",
            "optimizer -1 -1 -1 55.5 59.5",
            "reduce -1 -1 -1 59.5 71.5",  # rank 0 ends its last backward at 67.5
            "step -1 -1 -1 0 71.5",
        ]
    )


def test_a_receive_is_posted_before_the_first_action() -> None:
    posts = only(to_events(simulate_steps(TWO, [COSTS]))[0], Op.RECV_POST)
    assert [(p.stage, p.micro_batch, p.peer, p.start_ns, p.end_ns) for p in posts] == [
        (0, 0, 1, 3_000_000, 3_000_000),
        (0, 1, 1, 3_000_000, 3_000_000),
    ]


def test_sizes_clocks_and_step_numbers_are_the_settings() -> None:
    settings_ = EventSettings(
        first_step=7,
        origin_ns=1_000,
        clock_offset_ns={1: 5_000_000_000},
        message_bytes={(0, 1): 64, (1, 0): 32},
        memory=MemoryCosts(activation_bytes={0: 10, 1: 20}, static_bytes={0: 100, 1: 200}),
    )
    rank_0, rank_1 = to_events(simulate_steps(TWO, [COSTS] * 2), settings_)
    assert [e.step for e in only(rank_0, Op.STEP)] == [7, 8]
    assert rank_0[0].start_ns == 1_000
    assert min(e.start_ns for e in rank_1) == 5_000_001_000
    assert {e.bytes for e in only(rank_1, Op.RECV)} == {64}
    assert {e.bytes for e in only(rank_1, Op.SEND)} == {32}
    assert [e.memory_bytes for e in only(rank_0, *COMPUTE_OPS) if e.step == 7] == [110, 120, 110, 100]
    assert {e.memory_bytes for e in only(to_events(simulate_steps(TWO, [COSTS]))[0], *COMPUTE_OPS)} == {0}


def test_no_steps_have_no_events() -> None:
    assert to_events([]) == []


@settings(max_examples=80, deadline=None)
@given(st.data(), schedules(TRAINING, most_ranks=4, most_micro_batches=6))
def test_parts_of_a_step_sum_to_it_and_steps_follow_each_other(data: st.DataObject, schedule: Schedule) -> None:
    costs = [data.draw(costs_for(schedule, joined_end=joined)) for joined in (True, False, False)]
    for rank, events in enumerate(to_events(simulate_steps(schedule, costs))):
        steps = only(events, Op.STEP)
        assert all(a.end_ns == b.start_ns for a, b in pairwise(steps))
        for step in steps:
            own = [event for event in events if event.step == step.step]
            assert own[-1] == step
            parts = only(own, *OUTSIDE_SCHEDULE, Op.SCHEDULE)
            assert sum(e.end_ns - e.start_ns for e in parts) == step.end_ns - step.start_ns
            (window,) = only(own, Op.SCHEDULE)
            inside = only(own, *INSIDE_SCHEDULE)
            assert inside[0].start_ns >= window.start_ns
            assert inside[-1].end_ns == window.end_ns
            assert all(a.start_ns <= a.end_ns <= b.start_ns <= b.end_ns for a, b in pairwise(inside))
            assert [(e.stage, e.micro_batch) for e in only(own, *COMPUTE_OPS)] == [(a.stage, a.micro_batch) for a in schedule.orders[rank]]


@settings(max_examples=60, deadline=None)
@given(st.data(), schedules(TRAINING, most_ranks=4, most_micro_batches=6))
def test_every_receive_has_its_send_and_ends_after_it(data: st.DataObject, schedule: Schedule) -> None:
    ranks = to_events(simulate_steps(schedule, [data.draw(costs_for(schedule))]))
    sends = {(e.stage, e.peer, e.micro_batch): e for events in ranks for e in only(events, Op.SEND)}
    receives = {(e.peer, e.stage, e.micro_batch): e for events in ranks for e in only(events, Op.RECV)}
    posts = {(e.peer, e.stage, e.micro_batch) for events in ranks for e in only(events, Op.RECV_POST)}
    assert sends.keys() == receives.keys() == posts
    assert all(receives[key].end_ns >= sends[key].end_ns for key in sends)


@pytest.mark.parametrize("joined_end", [True, False])
def test_equal_steps_repeat_their_events_a_step_time_later(joined_end: bool) -> None:
    costs = replace(equal_costs(2), joined_end=joined_end)
    steps = simulate_steps(build_schedule("1f1b", ranks=2, micro_batches=3), [costs] * 4)
    shift_ns = round(steps[-1].step_time_s * 1e9)
    for events in to_events(steps):
        last, before = ([(e.op, e.stage, e.micro_batch, e.start_ns) for e in events if e.step == step] for step in (3, 2))
        assert last == [(op, stage, m, start_ns + shift_ns) for op, stage, m, start_ns in before]
