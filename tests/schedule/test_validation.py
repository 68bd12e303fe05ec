"""The validator names the first wrong action, its rank and position, and the remedy."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.errors import ScheduleError
from pptoolkit.schedule import Schedule, build_schedule, parse_order, validate
from tests.schedule.sizes import schedules


def schedule(*orders: str, micro_batches: int = 2, stage_to_rank: tuple[int, ...] | None = None, name: str = "mine") -> Schedule:
    return Schedule(
        name=name,
        micro_batches=micro_batches,
        stage_to_rank=tuple(range(len(orders))) if stage_to_rank is None else stage_to_rank,
        orders=tuple(parse_order(order, stage=rank) for rank, order in enumerate(orders)),
    )


def test_whole_and_split_backwards_may_be_mixed() -> None:
    validate(schedule("F0 F1 I0 W0 B1", "F0 B0 F1 I1 W1"))


@pytest.mark.parametrize(
    ("orders", "message"),
    [
        (("F0 B0 F1 B1", "F0 B0 F1"), r"rank 1, end of its order: 1B1 never runs; add it after 1F1"),
        (("F0 F1 B0 I1", "F0 B0 F1 B1"), r"rank 0, end of its order: 0W1 never runs; add it after 0I1"),
        (("F0 B0", "F0 B0 F1 B1"), r"rank 0, end of its order: 0F1 never runs; add it"),
        (("F0 F1 F0 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 2: 0F0 runs a second time; remove one"),
        (("F0 B1 F1 B0", "F0 B0 F1 B1"), r"rank 0, position 1: 0B1 runs before 0F1; move 0F1 before it"),
        (("F0 F1 W0 I0 B1", "F0 B0 F1 B1"), r"rank 0, position 2: 0W0 runs before 0I0; move 0I0 before it"),
        (("F0 F1 B0 W0 B1", "F0 B0 F1 B1"), r"rank 0, position 3: 0W0 repeats part of a backward.*B, or I and W"),
        (("F0 F1 I0 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 3: 0B0 repeats part of a backward"),
        (("F0 F1 2F0 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 2: 2F0 names stage 2, but there are stages 0 to 1"),
        (("F0 F1 F2 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 2: 0F2 names micro-batch 2, but there are micro-batches 0 to 1"),
        (("F0 F1 1F0 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 2: 1F0 belongs to stage 1, which rank 1 owns; move it to rank 1"),
        (("F0 SEND_F0 F1 B0 B1", "F0 B0 F1 B1"), r"rank 0, position 1: 0SEND_F0 is communication, .*leave only F, B, I and W"),
    ],
)
def test_the_first_wrong_action_is_named(orders: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        validate(schedule(*orders))


def test_a_last_rank_that_starts_at_the_second_micro_batch_is_refused() -> None:
    with pytest.raises(ScheduleError, match=r"rank 1, end of its order: 1F0 never runs"):
        validate(schedule("F0 F1 B0 B1", "F1 B1"))


def test_a_deadlock_names_both_ranks_and_what_each_waits_for() -> None:
    # Rank 0 wants the gradient of micro-batch 0 before it gives away micro-batch 1; rank 1 wants micro-batch 1 first.
    with pytest.raises(ScheduleError) as refused:
        validate(schedule("F0 B0 F1 B1", "F0 F1 B0 B1"))
    assert str(refused.value).startswith("rank 0 stops at position 1: 0B0 waits for 1B0 or 1I0, which rank 1 runs at position 2")
    assert "rank 1 itself waits at position 1 (1F1): a deadlock; on rank 1 run 1B0 earlier, or on rank 0 run 0B0 later" in str(
        refused.value
    )


def test_a_rank_that_waits_for_its_own_later_action_is_told_to_move_it() -> None:
    with pytest.raises(
        ScheduleError, match=r"rank 0 stops at position 0: 1F0 waits for 0F0, which the same rank runs only later, at position 1"
    ):
        validate(schedule("1F0 0F0 1B0 0B0", stage_to_rank=(0, 0), micro_batches=1))


def test_a_rank_without_a_stage_is_refused() -> None:
    with pytest.raises(ScheduleError, match="rank 1 owns no stage; give it one, or use fewer ranks"):
        validate(schedule("F0 F1 B0 B1", "", stage_to_rank=(0,)))


def test_a_stage_on_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ScheduleError, match="stage 1 is placed on rank 5, but the schedule has ranks 0 to 0"):
        validate(schedule("F0 F1 B0 B1", stage_to_rank=(0, 5)))


def test_a_schedule_without_micro_batches_is_refused() -> None:
    with pytest.raises(ScheduleError, match="0 micro-batches"):
        validate(schedule("", micro_batches=0))


def test_a_training_schedule_without_backwards_is_refused_but_a_forward_only_one_is_not() -> None:
    validate(schedule("F0 F1", "F0 F1", name="forward"))
    with pytest.raises(ScheduleError, match=r"rank 0, end of its order: 0B0 never runs"):
        validate(schedule("F0 F1", "F0 F1"))
    with pytest.raises(ScheduleError, match=r"rank 0, position 2: 0B0 is a backward action in a forward-only schedule"):
        validate(schedule("F0 F1 B0", "F0 F1", name="forward"))


def test_the_in_flight_limit_names_the_action_that_passes_it() -> None:
    gpipe = build_schedule("gpipe", ranks=2, micro_batches=4)
    validate(gpipe, max_in_flight=4)
    with pytest.raises(ScheduleError, match=r"rank 0, position 2: 0F2 makes 3 in flight in stage 0, and the limit is 2"):
        validate(gpipe, max_in_flight=2)
    validate(build_schedule("1f1b", ranks=2, micro_batches=4), max_in_flight=[2, 1])
    with pytest.raises(ScheduleError, match=r"rank 1, position 1: 1F1 makes 2 in flight in stage 1, and the limit is 1"):
        validate(gpipe, max_in_flight=[4, 1])
    with pytest.raises(ScheduleError, match="max_in_flight has 3 entries for 2 stages"):
        validate(gpipe, max_in_flight=[1, 1, 1])


@settings(max_examples=100, deadline=None)
@given(schedules(most_micro_batches=8), st.data())
def test_a_schedule_that_lost_an_action_is_refused(valid: Schedule, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, valid.ranks - 1))
    lost = data.draw(st.integers(0, len(valid.orders[rank]) - 1))
    orders = list(valid.orders)
    orders[rank] = orders[rank][:lost] + orders[rank][lost + 1 :]
    with pytest.raises(ScheduleError, match=rf"rank {rank}"):
        validate(replace(valid, orders=tuple(orders)))
