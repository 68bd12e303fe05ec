from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.errors import PlanError
from pptoolkit.plan import Plan
from pptoolkit.planner.partition import minimax_cuts, stage_costs

costs_lists = st.one_of(
    st.lists(st.integers(0, 12).map(float), min_size=1, max_size=10),
    st.lists(st.floats(0.0, 1e9, allow_subnormal=False), min_size=1, max_size=10),
)


def all_cuts(layers, stages):
    return combinations(range(1, layers), stages - 1)


@settings(max_examples=300, deadline=None)
@given(costs_lists, st.data())
def test_no_other_cut_has_a_cheaper_worst_stage(costs, data):
    stages = data.draw(st.integers(1, len(costs)))
    found = max(stage_costs(costs, minimax_cuts(costs, stages)))
    assert found == pytest.approx(min(max(stage_costs(costs, cuts)) for cuts in all_cuts(len(costs), stages)), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.data())
def test_among_the_best_cuts_the_most_even_one_is_taken(costs, data):
    stages = data.draw(st.integers(1, len(costs)))

    def key(cuts):
        loads = stage_costs(costs, cuts)
        return max(loads), sum(load * load for load in loads)

    assert key(minimax_cuts(costs, stages)) == min(key(cuts) for cuts in all_cuts(len(costs), stages))


@pytest.mark.parametrize("layers", range(1, 21))
def test_every_layer_lands_in_exactly_one_stage_in_order(layers):
    costs = [float((7 * i) % 5) for i in range(layers)]
    for stages in range(1, layers + 1):
        cuts = minimax_cuts(costs, stages)
        ranges = Plan(cuts=cuts).stage_layers(layers)
        assert len(ranges) == stages
        assert [i for r in ranges for i in r] == list(range(layers))
        assert sum(stage_costs(costs, cuts)) == sum(costs)


def test_five_equal_layers_on_four_stages_leave_none_empty():
    cuts = minimax_cuts([1.0] * 5, 4)
    assert sorted(stage_costs([1.0] * 5, cuts)) == [1.0, 1.0, 1.0, 2.0]


def test_a_heavy_first_layer_gets_a_short_stage():
    assert minimax_cuts([25.0, 5, 5, 5, 5, 5, 5, 5], 2) == (2,)


def test_free_layers_still_fill_every_stage():
    assert minimax_cuts([0.0] * 4, 4) == (1, 2, 3)


def test_rounding_cannot_hide_the_optimum():
    # 0.1 + 0.2 > 0.3 in floats; the sums are exact, so the answer does not depend on the order of additions.
    cuts = minimax_cuts([0.1, 0.2, 0.3], 2)
    assert cuts == (2,)


@pytest.mark.parametrize("stages", [0, 4])
def test_stages_that_do_not_fit_are_refused(stages):
    with pytest.raises(PlanError, match=f"{stages} stages do not fit a model of 3 layers"):
        minimax_cuts([1.0, 2.0, 3.0], stages)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_a_cost_that_is_no_cost_is_refused(cost):
    with pytest.raises(PlanError, match="layer 1"):
        minimax_cuts([1.0, cost], 2)


def test_the_same_list_always_gives_the_same_cuts_on_the_large_path_too(monkeypatch):
    costs = [float((i * 7919) % 13 + 1) for i in range(300)]
    exact = max(stage_costs(costs, minimax_cuts(costs, 40)))
    monkeypatch.setattr("pptoolkit.planner.partition._TIE_BREAK_WORK", 0)
    cuts = minimax_cuts(costs, 40)
    assert cuts == minimax_cuts(costs, 40)
    assert max(stage_costs(costs, cuts)) == exact
    assert len(Plan(cuts=cuts).stage_layers(300)) == 40


@settings(max_examples=200, deadline=None)
@given(costs_lists, st.data())
def test_the_large_path_is_optimal_too(costs, data):
    from pptoolkit.planner import partition

    stages = data.draw(st.integers(1, len(costs)))
    sums = partition._prefix_sums(costs)
    bottleneck = partition._bottleneck(sums, stages)
    cuts = partition._even_cuts(sums, partition._cut_windows(sums, stages, bottleneck), bottleneck)
    Plan(cuts=cuts).check(len(costs))
    edges = (0, *cuts, len(costs))
    assert max(sums[b] - sums[a] for a, b in pairwise(edges)) == bottleneck
