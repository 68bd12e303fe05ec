from dataclasses import replace
from itertools import combinations

import pytest

from pptoolkit.analysis.layer_costs import LayerCost, LayerCosts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import InputError
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.planner.bounded import bounded_cuts
from pptoolkit.planner.partition import minimax_cuts, stage_costs
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.search import SearchSpace, search_plans
from pptoolkit.planner.step_costs import MeasuredStep, RankSides
from pptoolkit.planner.suggest import suggest
from pptoolkit.telemetry import RunInfo

MIB = 1 << 20


def exactly(value):
    return Interval(median=value, low=value, high=value, samples=20)


def model(times_ms, *, ranks, micro_batches, batch=0, activation=10 * MIB, cuts=None, fixed=None):
    layers = LayerCosts(
        layers=tuple(
            LayerCost(
                layer=i,
                name=f"l{i}",
                forward=exactly(t / 3e3),
                backward=exactly(t / 1.5e3),
                parameter_bytes=MIB,
                activation_bytes=activation,
                boundary_bytes=MIB // 8,
            )
            for i, t in enumerate(times_ms)
        )
    )
    plan = Plan(cuts=cuts or equal_layer_cuts(len(times_ms), ranks), micro_batches=micro_batches)
    measured = MeasuredStep(
        plan=plan,
        step_time=exactly(1.0),
        step_sigma_s=0.0,
        layers=layers,
        mean_over_median=1.0,
        backward_input_share=0.5,
        sides=(RankSides(before_s=0.0, after_s=0.0, optimizer_s=0.001),) * ranks,
        transfer_s={},
        send_s=0.0,
        action_overhead_s=0.0,
        joined_end=True,
        batch_samples=batch,
        fixed_shares=((fixed, fixed),) * len(times_ms) if fixed is not None else None,
    )
    return replace(measured, step_time=exactly(Predictor(measured).replay_s))


def found(measured, **space):
    return search_plans(Predictor(measured, resize=True), SearchSpace(**space))


def info_of(measured):
    return RunInfo(
        run_id="r", layers=tuple(layer.name for layer in measured.layers.layers), plan=measured.plan.to_dict(), ranks=measured.ranks
    )


TIMES = [9, 3, 4, 8, 2, 6, 5, 7]


def test_the_best_cut_of_all_is_found():
    measured = model(TIMES, ranks=4, micro_batches=8)
    predictor = Predictor(measured)
    best = min(predictor.simulate(measured.plan.evolve(cuts=cuts)).step_time_s for cuts in combinations(range(1, 8), 3))
    result = found(measured, schedules=("1f1b",))
    assert result.items[0].step.step_time_s == pytest.approx(best, rel=1e-9)


def test_other_schedules_and_placements_are_searched_too():
    measured = model([5] * 16, ranks=4, micro_batches=8)
    result = found(measured)
    assert {item.step.plan.schedule for item in result.items} >= {"zbv", "zb-h1"} or result.items[0].step.plan.stages == 8
    assert result.items[0].step.step_time_s < measured.step_time.median
    times = [item.step.step_time_s for item in result.items]
    assert times == sorted(times)


def test_micro_batches_are_neither_too_small_nor_too_large():
    measured = model([4] * 8, ranks=4, micro_batches=8, batch=256, fixed=0.3)
    result = found(measured, schedules=("1f1b",), micro_batches=(4, 8, 16, 32, 64, 128))
    best = result.items[0].step.plan.micro_batches
    assert 8 <= best <= 64
    alone = {m: found(measured, schedules=("1f1b",), micro_batches=(m,)).items for m in (4, 128)}
    assert all(
        min(i.step.step_time_s for i in items if i.step.plan.micro_batches == m) > result.items[0].step.step_time_s
        for m, items in alone.items()
    )


def test_stages_are_traded_against_replicas():
    # A layer that takes most of the time cannot be cut: two replicas of two stages beat four stages.
    measured = model([20, 1, 1, 1], ranks=4, micro_batches=4, batch=64)
    plan = found(measured, schedules=("1f1b",), replicas=(1, 2, 4)).items[0].step.plan
    assert plan.replicas > 1


@pytest.mark.parametrize("limit_mib", [400, 200, 120, 80, 60])
def test_no_plan_needs_more_memory_than_it_may(limit_mib):
    measured = model(TIMES * 2, ranks=4, micro_batches=16)
    result = found(measured, memory_limit_bytes=limit_mib * MIB)
    assert result.items
    assert all(max(item.step.memory_bytes) <= limit_mib * MIB for item in result.items)
    free = found(measured).items[0].step
    assert result.items[0].step.step_time_s >= free.step_time_s * (1 - 1e-9)
    if max(free.memory_bytes) > limit_mib * MIB:
        assert any("memory" in item.binding for item in result.items)


def test_an_infeasible_limit_gets_the_smallest_feasible_one_in_the_answer():
    measured = model(TIMES, ranks=4, micro_batches=8)
    refused = suggest(measured, info_of(measured), space=SearchSpace(memory_limit_bytes=MIB))
    assert not len(refused)
    assert "no plan fits 1 MiB" in refused.no_change.reason
    least = found(measured, memory_limit_bytes=MIB).smallest_memory_bytes
    assert f"({least} bytes)" in refused.no_change.reason
    again = found(measured, memory_limit_bytes=least)
    assert again.items
    assert max(again.items[0].step.memory_bytes) <= least
    assert not found(measured, memory_limit_bytes=least - 1).items


def test_a_run_over_the_limit_is_given_a_plan_even_if_it_is_slower():
    measured = model(TIMES, ranks=4, micro_batches=8)
    limit = max(Predictor(measured).memory(measured.plan)) - 20 * MIB
    answer = suggest(measured, info_of(measured), space=SearchSpace(memory_limit_bytes=limit, schedules=("1f1b",)))
    assert len(answer)
    assert max(answer[0].memory_bytes) <= limit
    assert answer[0].binding


def test_a_suggestion_says_what_changes_and_what_others_would_cut():
    measured = model(TIMES, ranks=4, micro_batches=8)
    answer = suggest(measured, info_of(measured), space=SearchSpace())
    assert set(answer.baselines) == {"uniform", "by_parameters", "block_partition", "weighted_ends"}
    assert answer[0].sentence
    assert answer[0].low_s < answer[0].step_time_s < answer[0].high_s
    assert all(answer[0].step_time_s <= seconds * (1 + 1e-9) for seconds in answer.baselines.values())


def test_a_balanced_run_is_left_alone_where_only_its_cuts_may_change():
    measured = model([5] * 8, ranks=4, micro_batches=8)
    answer = suggest(measured, info_of(measured), space=SearchSpace(schedules=("1f1b",), rounds=(1,)))
    assert not len(answer)
    assert answer.no_change.conclusive


@pytest.mark.parametrize("seed", range(20))
def test_bounded_cuts_are_the_fairest_that_fit(seed):
    import random

    generator = random.Random(seed)
    costs, sizes = ([generator.uniform(1, 10) for _ in range(9)] for _ in range(2))
    limit = generator.uniform(10, 30)

    def fits(stage, start, end):
        return sum(sizes[start:end]) * (3 - stage) <= limit

    good = [
        cuts
        for cuts in combinations(range(1, 9), 2)
        if all(fits(s, a, b) for s, (a, b) in enumerate(zip((0, *cuts), (*cuts, 9), strict=True)))
    ]
    cuts = bounded_cuts(costs, 3, fits)
    if not good:
        assert cuts is None
    else:
        assert max(stage_costs(costs, cuts)) == pytest.approx(min(max(stage_costs(costs, c)) for c in good), rel=1e-6)


def test_without_a_memory_limit_bounded_cuts_are_as_good_as_the_exact_ones():
    costs = [float((7 * i) % 11 + 1) for i in range(40)]
    cuts = bounded_cuts(costs, 6, lambda *_: True)
    assert max(stage_costs(costs, cuts)) == pytest.approx(max(stage_costs(costs, minimax_cuts(costs, 6))), rel=1e-6)


@pytest.mark.parametrize("limit", [pytest.param(None, marks=pytest.mark.slow), 400 * MIB])
def test_96_layers_on_64_ranks_with_512_micro_batches_stay_within_the_search_budget(limit):
    measured = model([8 + (i * 37) % 5 for i in range(96)], ranks=64, micro_batches=512, batch=2048, activation=2 * MIB)
    result = found(measured, memory_limit_bytes=limit)
    assert result.items
    assert result.tried <= 40  # the budget of simulated actions; benchmarks/planner.py holds it against the clock


@pytest.mark.parametrize(
    ("name", "words"),
    [("foo", "is unknown"), ("1f1d", "did you mean '1f1b'"), ("forward", "trains nothing"), ("own.csv", "simulate --schedule own.csv")],
)
def test_schedules_that_cannot_be_searched_are_refused(name, words):
    with pytest.raises(InputError, match=words):
        SearchSpace(schedules=("1f1b", name))
