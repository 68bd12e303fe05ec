"""What the simulator's rules are, one small picture each, and that they are what a second, slower simulator finds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.errors import InputError, ScheduleError
from pptoolkit.schedule import Action, ActionKind, Schedule, build_schedule, parse_order
from pptoolkit.simulator import Costs, MemoryCosts, Program, equal_costs, simulate
from tests.schedule.sizes import schedules
from tests.simulator.random_costs import costs_for, reference_ends

F, B = ActionKind.FORWARD, ActionKind.BACKWARD
TWO = build_schedule("1f1b", ranks=2, micro_batches=2)  # rank 0: F0 F1 B0 B1, rank 1: F0 B0 F1 B1
PLAIN = Costs(op_s={(s, kind): 1.0 for s in (0, 1) for kind in (F, B)})


def times(schedule: Schedule, costs: Costs) -> dict[str, tuple[float, float]]:
    return {str(op.action): (op.start_s, op.end_s) for op in simulate(schedule, costs).ops}


def test_a_rank_runs_its_list_in_sequence_and_waits_for_its_inputs() -> None:
    found = times(TWO, PLAIN)
    assert found == {"0F0": (0, 1), "0F1": (1, 2), "0B0": (3, 4), "0B1": (5, 6), "1F0": (1, 2), "1B0": (2, 3), "1F1": (3, 4), "1B1": (4, 5)}


def test_a_message_delays_its_receiver_and_not_its_sender() -> None:
    found = times(TWO, replace(PLAIN, transfer_s={(0, 1): 0.5}))
    assert (found["0F1"], found["1F0"]) == ((1, 2), (1.5, 2.5))


def test_messages_of_one_direction_follow_each_other_on_the_link() -> None:
    gpipe = build_schedule("gpipe", ranks=2, micro_batches=3)
    found = times(gpipe, replace(PLAIN, transfer_s={(0, 1): 2.0}))
    # Made at 1, 2 and 3 s; on the link from 1 to 3, 3 to 5 and 5 to 7 s.
    assert [found[f"1F{m}"][0] for m in range(3)] == [3, 5, 7]


def test_the_two_directions_of_a_border_do_not_disturb_each_other() -> None:
    both = simulate(TWO, replace(PLAIN, transfer_s={(0, 1): 1.0, (1, 0): 1.0}))
    assert times(TWO, replace(PLAIN, transfer_s={(0, 1): 1.0, (1, 0): 1.0}))["0B0"][0] == 5  # F0 1, link 2, F0 3, B0 4, link 5
    assert both.step_time_s == 8


def test_stages_of_one_rank_hand_over_without_the_link() -> None:
    v = build_schedule("zbv", ranks=1, micro_batches=1)
    slow_link = replace(equal_costs(2), transfer_s={(0, 1): 100.0, (1, 0): 100.0}, send_s=7.0, recv_s=7.0)
    assert simulate(v, slow_link).step_time_s == 6


def test_host_time_of_sends_receives_and_actions_falls_on_the_ranks_that_do_them() -> None:
    found = times(TWO, replace(PLAIN, send_s=0.25, recv_s=0.125))
    assert found["0F1"] == (1.25, 2.25)  # after F0's send
    assert found["1F0"] == (1.375, 2.375)  # the message leaves at 1.25 and is taken in 0.125
    assert found["1B0"] == (2.375, 3.375)  # needs no message
    assert times(TWO, replace(PLAIN, action_overhead_s=0.5))["1B0"] == (3.0, 4.0)  # 0.5 + F0 + (hidden) + F0 + 0.5


def test_overhead_passes_while_a_rank_waits() -> None:
    assert times(TWO, replace(PLAIN, action_overhead_s=0.5))["1F0"] == (1.5, 2.5)


def test_time_before_and_after_delays_the_rank_that_has_it() -> None:
    step = simulate(TWO, replace(PLAIN, before_s={0: 3.0}, after_s={1: 4.0}))
    assert step.timeline.rank_done_s == [9, 8]
    assert step.timeline.rank_end_s == [12, 12]  # rank 1 arrives at 8 + 4, and rank 0 waits for it
    assert step.join_wait_s == (3, 0)


def test_waiting_for_messages_is_counted_on_the_rank_that_waits() -> None:
    assert simulate(TWO, PLAIN).wait_s == (2, 1)  # rank 0: B0 from 2 to 3, B1 from 4 to 5; rank 1: F0 from 0 to 1


def test_ops_own_times_come_before_the_stages() -> None:
    found = times(
        TWO, replace(PLAIN, overrides={Action(1, F, 1): 5.0}, transfer_s={(1, 0): 1.0}, transfer_overrides={Action(1, B, 0): 3.0})
    )
    assert found["1F1"] == (3, 8)
    assert found["0B0"] == (6, 7)
    assert found["0B1"] == (10, 11)


def test_a_whole_backward_is_the_sum_of_its_parts_where_only_these_are_known() -> None:
    parts = {(s, kind): 1.5 for s in (0, 1) for kind in (F, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT)}
    assert times(TWO, Costs(op_s=parts))["1B0"] == (3, 6)


def test_a_missing_time_is_named() -> None:
    with pytest.raises(InputError, match=r"no time for BACKWARD of stage 1; add op_s\[\(1, ActionKind.BACKWARD\)\]"):
        simulate(TWO, Costs(op_s={(0, F): 1.0, (1, F): 1.0, (0, B): 1.0}))


@pytest.mark.parametrize("wrong", [-0.1, float("nan")])
def test_what_is_no_duration_is_refused_by_name(wrong: float) -> None:
    with pytest.raises(InputError, match=rf"send_s={wrong} is not a duration"):
        replace(PLAIN, send_s=wrong)
    with pytest.raises(InputError, match=rf"transfer_s\[\(0, 1\)\]={wrong} is not a duration"):
        replace(PLAIN, transfer_s={(0, 1): wrong})


def test_a_schedule_that_deadlocks_is_refused() -> None:
    crossed = replace(TWO, orders=(parse_order("F0 B0 F1 B1", stage=0), parse_order("F0 F1 B0 B1", stage=1)))
    with pytest.raises(ScheduleError, match="deadlock"):
        simulate(crossed, PLAIN)


def test_memory_is_what_is_static_and_what_is_held_at_once() -> None:
    memory = MemoryCosts(activation_bytes={0: 10, 1: 100}, static_bytes={0: 1, 1: 2})
    step = simulate(TWO, PLAIN, memory=memory)
    assert step.memory_high_water_bytes == (21, 102)
    assert step.in_flight == (2, 1)
    assert simulate(build_schedule("gpipe", ranks=2, micro_batches=4), PLAIN, memory=memory).memory_high_water_bytes == (41, 402)


def test_memory_of_a_rank_with_several_stages_is_the_peak_of_their_sum() -> None:
    v = build_schedule("zbv", ranks=1, micro_batches=2)  # 0F0 1F0 1I0 1W0 0F1 0I0 0W0 1F1 ...: at most one of stage 1 and two of stage 0
    memory = MemoryCosts(activation_bytes={0: 1, 1: 10}, static_bytes={0: 100, 1: 1000})
    assert simulate(v, equal_costs(2), memory=memory).memory_high_water_bytes == (1111,)


@settings(max_examples=150, deadline=None)
@given(st.data(), schedules(most_ranks=4, most_micro_batches=6))
def test_every_op_ends_when_the_second_simulator_says(data: st.DataObject, schedule: Schedule) -> None:
    costs = data.draw(costs_for(schedule, joined_end=True))
    assert {op.action: op.end_s for op in simulate(schedule, costs).ops} == reference_ends(schedule, costs)


def test_a_program_serves_many_costs() -> None:
    program = Program(TWO)
    assert simulate(program, PLAIN).step_time_s == simulate(TWO, PLAIN).step_time_s == 6
    assert simulate(program, replace(PLAIN, transfer_s={(0, 1): 1.0})).step_time_s == 7
