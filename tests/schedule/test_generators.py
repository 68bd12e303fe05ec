"""What holds for every schedule of every size: it can run, and it holds what its source says it holds."""

from itertools import product

import pytest
from hypothesis import given, settings

from pptoolkit.errors import PlanError, ScheduleError
from pptoolkit.schedule import SCHEDULES, ActionKind, Schedule, build_schedule, forward_schedule, validate
from pptoolkit.schedule.placement import v_placement
from pptoolkit.simulator import MemoryCosts, equal_costs, simulate
from tests.schedule.drawing import draw
from tests.schedule.sizes import LOOPED, V_SHAPED, schedules, stages_per_rank


def held_at_most(schedule: Schedule) -> int:
    """Most activations that a rank holds at once, over all its stages."""
    memory = MemoryCosts(activation_bytes=dict.fromkeys(range(schedule.stages), 1))
    return max(simulate(schedule, equal_costs(schedule.stages), memory=memory).memory_high_water_bytes)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_small_size_is_valid(name: str) -> None:
    for ranks, micro_batches, per_rank in product(range(1, 7), range(1, 15), stages_per_rank(name)):
        validate(build_schedule(name, ranks=ranks, micro_batches=micro_batches, stages=ranks * per_rank))


def test_a_rank_goes_on_to_the_next_pass_when_it_is_done_with_its_own() -> None:
    once = build_schedule("1f1b", ranks=2, micro_batches=2)
    twice = once.repeated(2)
    validate(twice)
    assert draw(twice).splitlines() == [
        "F0 F1 .. B0 .. B1 F2 F3 .. B2 .. B3",
        ".. F0 B0 F1 B1 .. .. F2 B2 F3 B3",
    ]
    assert [twice.in_flight(stage) for stage in (0, 1)] == [once.in_flight(stage) for stage in (0, 1)]
    assert once.repeated(1) is once


@settings(max_examples=150, deadline=None)
@given(schedules(most_ranks=16, most_micro_batches=70))
def test_any_size_is_valid(schedule: Schedule) -> None:
    validate(schedule)


@pytest.mark.parametrize("micro_batches", [1, 2, 3, 8, 64])
def test_one_f_one_b_holds_one_micro_batch_more_for_each_rank_below(micro_batches: int) -> None:
    schedule = build_schedule("1f1b", ranks=4, micro_batches=micro_batches)
    assert [schedule.in_flight(stage) for stage in range(4)] == [min(n, micro_batches) for n in (4, 3, 2, 1)]


def test_gpipe_and_looped_bfs_hold_every_micro_batch() -> None:
    assert build_schedule("gpipe", ranks=2, micro_batches=9).in_flight(1) == 9
    assert build_schedule("looped-bfs", ranks=2, micro_batches=9).in_flight(3) == 9


@pytest.mark.parametrize(("ranks", "micro_batches"), [*product((1, 2, 4, 7), (1, 3, 8, 40))])
def test_zb_h1_holds_no_more_than_one_f_one_b_does_at_most(ranks: int, micro_batches: int) -> None:
    sizes = {"ranks": ranks, "micro_batches": micro_batches}
    assert held_at_most(build_schedule("zb-h1", **sizes)) <= held_at_most(build_schedule("1f1b", **sizes))


@pytest.mark.parametrize(("name", "more"), [("zbv", 0), ("dualpipev", 1)])
@pytest.mark.parametrize("ranks", [1, 2, 4, 7])
def test_v_schedules_hold_two_half_size_activations_for_each_rank(name: str, more: int, ranks: int) -> None:
    assert held_at_most(build_schedule(name, ranks=ranks, micro_batches=40)) <= 2 * ranks + more


@pytest.mark.parametrize("name", [*V_SHAPED, "zb-h1", "interleaved-zb", "interleaved-1f1b", "1f1b"])
def test_what_is_held_does_not_grow_with_the_number_of_micro_batches(name: str) -> None:
    assert held_at_most(build_schedule(name, ranks=4, micro_batches=64)) == held_at_most(build_schedule(name, ranks=4, micro_batches=16))


def test_the_v_puts_the_first_and_the_last_stage_on_rank_0() -> None:
    assert build_schedule("zbv", ranks=3, micro_batches=5).stage_to_rank == (0, 1, 2, 2, 1, 0)


def test_a_forward_schedule_follows_the_placement_of_training() -> None:
    schedule = forward_schedule(v_placement(2), 2)
    validate(schedule)
    assert [str(action) for action in schedule.orders[0]] == ["0F0", "0F1", "3F0", "3F1"]


def test_only_the_zero_bubble_schedules_split_the_backward() -> None:
    split = {
        name
        for name in SCHEDULES
        if any(a.kind is ActionKind.BACKWARD_WEIGHT for a in build_schedule(name, ranks=3, micro_batches=8).orders[0])
    }
    assert split == {"zb-h1", "interleaved-zb", "zbv", "dualpipev"}


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        ("1F1B", "1f1b"),
        ("g-pipe", "gpipe"),
        ("zbh1", "zb-h1"),
        ("Interleaved1F1B", "interleaved-1f1b"),
        ("dualpipe", "dualpipev"),
        ("1f1", "1f1b"),
    ],
)
def test_an_unknown_name_gets_the_nearest_suggested(asked: str, nearest: str) -> None:
    with pytest.raises(ScheduleError, match=f"'{asked}' is unknown; did you mean '{nearest}'"):
        build_schedule(asked, ranks=2, micro_batches=4)


def test_a_name_like_no_other_gets_the_list() -> None:
    with pytest.raises(ScheduleError, match=r"'qqq' is unknown; The schedules are gpipe, 1f1b, .*CSV file") as refused:
        build_schedule("qqq", ranks=2, micro_batches=4)
    assert "forward" not in str(refused.value)  # nobody who asks wants to train nothing


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1"])
def test_stages_that_do_not_fit_the_ranks_are_refused_with_both_numbers(name: str) -> None:
    with pytest.raises(PlanError, match=r"there are 2 stages for 3 ranks; use 2 cut points for 3 stages, or start 2 ranks"):
        build_schedule(name, ranks=3, micro_batches=4, stages=2)


def test_twice_the_stages_point_to_a_schedule_that_takes_them() -> None:
    with pytest.raises(PlanError, match=r"there are 4 stages for 2 ranks; .*or choose schedule 'interleaved-1f1b'"):
        build_schedule("1f1b", ranks=2, micro_batches=4, stages=4)


@pytest.mark.parametrize("name", [*LOOPED, *V_SHAPED])
@pytest.mark.parametrize("stages", [3, 5, 7])
def test_a_schedule_with_several_stages_a_rank_refuses_what_does_not_divide(name: str, stages: int) -> None:
    with pytest.raises(PlanError, match=f"'{name}' needs two .*{stages} stages for 3 ranks"):
        build_schedule(name, ranks=3, micro_batches=4, stages=stages)


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"micro_batches": 0}, {"stages": 0}, {"micro_batches": -2}])
def test_a_number_below_one_is_refused_by_name(wrong: dict[str, int]) -> None:
    with pytest.raises(PlanError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))} is too small"):
        build_schedule("1f1b", **{"ranks": 2, "micro_batches": 4, **wrong})
