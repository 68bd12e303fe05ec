import random
from itertools import combinations

import pytest

from pptoolkit.planner.baselines import baseline_cuts, block_partition_cuts, by_parameters_cuts, weighted_ends_cuts
from pptoolkit.planner.partition import minimax_cuts, stage_costs


def heavy(seed, layers=12):
    generator = random.Random(seed)
    return [generator.lognormvariate(0, 1.5) for _ in range(layers)]


def test_block_partition_ends_within_the_largest_layer_of_even():
    for seed in range(30):
        costs = heavy(seed)
        low, span = min(costs), max(costs) - min(costs)
        sizes = stage_costs([(c - low) / span for c in costs], block_partition_cuts(costs, 4))
        assert max(sizes) <= min(sizes) + 1 + 1e-9


@pytest.mark.parametrize(
    ("costs", "cuts"),
    [([1, 2, 3, 4, 5, 6], (4,)), ([5, 5, 5, 5], (2,)), ([9, 1, 1, 1, 1, 1], (3,)), ([1, 9, 9, 9, 9, 9], (3,))],
)
def test_block_partition_on_lists_worked_out_by_hand(costs, cuts):
    assert block_partition_cuts(costs, 2) == cuts


def test_by_parameters_makes_the_difference_of_the_stages_as_small_as_its_prefixes_allow():
    for seed in range(10):
        parameters = heavy(seed, 8)
        sizes = stage_costs(parameters, by_parameters_cuts(parameters, 2))
        assert max(sizes) - min(sizes) == pytest.approx(
            min(max(s) - min(s) for cuts in combinations(range(1, 8), 1) if (s := stage_costs(parameters, cuts))), abs=1e-12
        )


def test_weighted_ends_gives_the_first_stages_one_more_and_the_ends_less():
    assert weighted_ends_cuts(10, 3) == (4, 7)
    assert weighted_ends_cuts(10, 2, input_weight=2, output_weight=4) == (6,)
    assert weighted_ends_cuts(10, 1) == ()


def test_no_way_of_cutting_beats_the_exact_one():
    for seed in range(20):
        costs = heavy(seed, 16)
        best = max(stage_costs(costs, minimax_cuts(costs, 4)))
        ways = baseline_cuts(costs, heavy(seed + 100, 16), 4)
        assert set(ways) == {"uniform", "by_parameters", "block_partition", "weighted_ends"}
        assert all(max(stage_costs(costs, cuts)) >= best * (1 - 1e-12) for cuts in ways.values())


def test_a_model_without_parameters_has_no_cut_by_parameters():
    assert "by_parameters" not in baseline_cuts([1.0, 2.0, 3.0], [0, 0, 0], 2)
