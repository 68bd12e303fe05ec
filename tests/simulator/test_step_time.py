"""Step time and bubble: published formulas, lower bounds, monotony, and steps that repeat."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.errors import ScheduleError
from pptoolkit.schedule import SCHEDULES, ActionKind, Schedule, build_schedule, published_bubble_ratio
from pptoolkit.simulator import Costs, equal_costs, schedule_bubble_ratio, simulate, simulate_steps
from tests.schedule.sizes import TRAINING, schedules, stages_per_rank
from tests.simulator.random_costs import costs_for, seconds

SIZES = [(1, 1), (1, 5), (2, 2), (2, 5), (3, 8), (4, 4), (4, 8), (4, 13), (8, 16), (8, 23)]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zb-h1"])
@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
@pytest.mark.parametrize("joined_end", [True, False])
@pytest.mark.parametrize("part_s", [1.0, 0.75])
def test_equal_stages_give_the_published_bubble(name: str, ranks: int, micro_batches: int, joined_end: bool, part_s: float) -> None:
    for per_rank in stages_per_rank(name):
        sizes = {"ranks": ranks, "micro_batches": micro_batches, "stages": ranks * per_rank}
        parts = {"forward_s": 1.0, "backward_input_s": part_s, "backward_weight_s": part_s}
        step = simulate(build_schedule(name, **sizes), replace(equal_costs(ranks * per_rank, **parts), joined_end=joined_end))
        assert step.bubble_ratio == pytest.approx(published_bubble_ratio(name, **sizes, **parts), abs=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs"])
def test_the_bubble_of_whole_backwards_does_not_depend_on_their_length(name: str) -> None:
    schedule = build_schedule(name, ranks=4, micro_batches=12)
    expected = pytest.approx(published_bubble_ratio(name, ranks=4, micro_batches=12))
    assert [schedule_bubble_ratio(schedule, backward_to_forward=ratio) for ratio in (1.0, 2.0, 3.5)] == [expected] * 3


@pytest.mark.parametrize(("ranks", "micro_batches"), SIZES)
def test_forward_only_has_the_bubble_of_filling_and_draining(ranks: int, micro_batches: int) -> None:
    step = simulate(build_schedule("forward", ranks=ranks, micro_batches=micro_batches), equal_costs(ranks))
    assert step.bubble_ratio == pytest.approx(published_bubble_ratio("forward", ranks=ranks, micro_batches=micro_batches))


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (1, 4), (2, 3), (2, 9), (4, 7), (4, 20), (8, 15), (8, 40)])
def test_zbv_has_no_bubble_where_f_i_and_w_are_equal_and_steps_follow_each_other(ranks: int, micro_batches: int) -> None:
    schedule = build_schedule("zbv", ranks=ranks, micro_batches=micro_batches)
    step = simulate(schedule, replace(equal_costs(2 * ranks), joined_end=False))
    assert step.bubble_ratio == published_bubble_ratio("zbv", ranks=ranks, micro_batches=micro_batches) == 0


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 8), (8, 9)])
def test_zb_h1_idles_a_third_of_the_time_that_1f1b_does(ranks: int, micro_batches: int) -> None:
    step_s = {
        name: simulate(build_schedule(name, ranks=ranks, micro_batches=micro_batches), equal_costs(ranks)).step_time_s
        for name in ("1f1b", "zb-h1")
    }
    ideal_s = 3 * micro_batches
    assert 3 * (step_s["zb-h1"] - ideal_s) == step_s["1f1b"] - ideal_s


@pytest.mark.parametrize(
    ("name", "sizes"), [("zbv", (4, 6)), ("zb-h1", (4, 3)), ("looped-bfs", (4, 3)), ("dualpipev", (4, 8)), ("nothing", (1, 1))]
)
def test_what_has_no_published_formula_says_so(name: str, sizes: tuple[int, int]) -> None:
    with pytest.raises(
        ScheduleError, match=f"no bubble formula is published for schedule '{name}' with {sizes[0]} ranks, {sizes[1]} micro"
    ):
        published_bubble_ratio(name, ranks=sizes[0], micro_batches=sizes[1])


def test_a_schedules_own_bubble_is_that_of_equal_stages() -> None:
    assert schedule_bubble_ratio(build_schedule("1f1b", ranks=4, micro_batches=8)) == pytest.approx(3 / 11)
    assert schedule_bubble_ratio(build_schedule("1f1b", ranks=1, micro_batches=8)) == 0


@settings(max_examples=150, deadline=None)
@given(st.data(), schedules(most_ranks=5, most_micro_batches=9))
def test_a_step_is_never_shorter_than_its_busiest_rank_or_one_micro_batchs_way(data: st.DataObject, schedule: Schedule) -> None:
    costs = data.draw(costs_for(schedule))
    step = simulate(schedule, costs)
    own_s = [costs.before_s[r] + busy_s + costs.after_s[r] for r, busy_s in enumerate(step.compute_s)]
    assert step.step_time_s >= max(own_s) - 1e-9
    if costs.joined_end:
        assert step.step_time_s >= max(way_s(schedule, costs, m) for m in range(schedule.micro_batches)) - 1e-9
    assert 0 <= step.bubble_ratio <= 1


def way_s(schedule: Schedule, costs: Costs, micro_batch: int) -> float:
    """Time of one micro-batch through all stages and back, with nothing in its way; its weight parts left out."""
    on_way = [a for order in schedule.orders for a in order if a.micro_batch == micro_batch and a.kind is not ActionKind.BACKWARD_WEIGHT]
    total_s = sum(costs.overrides.get(a, costs.op_s[a.stage, a.kind]) for a in on_way)
    for a in on_way:
        target = a.stage + (1 if a.kind is ActionKind.FORWARD else -1)
        if 0 <= target < schedule.stages and schedule.stage_to_rank[target] != schedule.stage_to_rank[a.stage]:
            total_s += costs.transfer_overrides.get(a, costs.transfer_s[a.stage, target])
    return total_s


@settings(max_examples=150, deadline=None)
@given(st.data(), schedules(most_ranks=5, most_micro_batches=9), seconds)
def test_a_delay_never_makes_a_step_shorter(data: st.DataObject, schedule: Schedule, delay_s: float) -> None:
    costs = data.draw(costs_for(schedule, joined_end=True))
    action = data.draw(st.sampled_from([a for order in schedule.orders for a in order]))
    own_s = costs.overrides.get(action, costs.op_s[action.stage, action.kind])
    slower = replace(costs, overrides={**costs.overrides, action: own_s + delay_s})
    before_s, after_s = simulate(schedule, costs).step_time_s, simulate(schedule, slower).step_time_s
    assert before_s <= after_s <= before_s + delay_s


@settings(max_examples=100, deadline=None)
@given(st.data(), schedules(most_ranks=4, most_micro_batches=6))
def test_ranks_that_run_ahead_are_never_slower_than_ranks_that_end_together(data: st.DataObject, schedule: Schedule) -> None:
    costs = data.draw(costs_for(schedule, joined_end=False))
    assert simulate(schedule, costs).step_time_s <= simulate(schedule, replace(costs, joined_end=True)).step_time_s + 1e-9


@settings(max_examples=100, deadline=None)
@given(st.data(), schedules(TRAINING, most_ranks=4, most_micro_batches=6))
def test_the_repeating_step_is_what_many_steps_come_to(data: st.DataObject, schedule: Schedule) -> None:
    costs = data.draw(costs_for(schedule))
    steps = simulate_steps(schedule, [costs] * 60)
    mean_s = (max(steps[-1].timeline.rank_end_s) - max(steps[19].timeline.rank_end_s)) / 40
    assert simulate(schedule, costs).step_time_s == pytest.approx(mean_s, rel=0.02, abs=1e-9)


def test_a_rank_that_runs_ahead_hides_what_another_does_at_the_end() -> None:
    schedule = build_schedule("1f1b", ranks=2, micro_batches=2)
    late = replace(equal_costs(2), after_s={1: 3.0})
    assert simulate(schedule, late).step_time_s == 10  # rank 1: waits 1, computes 6, then its 3; rank 0 is done at 9
    assert simulate(schedule, replace(late, joined_end=False)).step_time_s == 9


def test_steps_of_different_costs_follow_each_other() -> None:
    schedule = build_schedule("gpipe", ranks=1, micro_batches=2)
    steps = simulate_steps(schedule, [equal_costs(1), equal_costs(1, forward_s=3.0), equal_costs(1)])
    assert [step.step_time_s for step in steps] == [6, 10, 6]
    assert [step.timeline.rank_start_s for step in steps] == [[0], [6], [16]]


def test_no_compute_at_all_has_no_bubble() -> None:
    nothing = equal_costs(2, forward_s=0.0, backward_input_s=0.0, backward_weight_s=0.0)
    for joined_end in (True, False):
        step = simulate(build_schedule("1f1b", ranks=2, micro_batches=2), replace(nothing, joined_end=joined_end))
        assert (step.step_time_s, step.bubble_ratio) == (0, 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_simulated_with_one_rank_and_one_micro_batch(name: str) -> None:
    schedule = build_schedule(name, ranks=1, micro_batches=1)
    assert simulate(schedule, equal_costs(schedule.stages)).bubble_ratio == 0
