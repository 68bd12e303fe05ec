"""Intervals of paired measurements, checked against the tables of the signed-rank test and by counting how often they hold."""

import random

import pytest

from benchmarks.paired import location, ratio, shuffled_rounds
from tests.benchmarks.support import critical_value


@pytest.mark.parametrize(("count", "tabulated"), [(6, 0), (8, 3), (10, 8), (15, 25), (20, 52), (25, 89)])
def test_the_interval_leaves_out_what_the_signed_rank_table_says(count, tabulated):
    assert critical_value(count) == tabulated


def test_the_interval_holds_the_centre_as_often_as_it_promises():
    draw = random.Random(1)
    held = 0
    for _ in range(1000):
        # A uniform and a normal part: symmetric about 3, and no shape that the method knows.
        found = location([3 + draw.uniform(-1, 1) + draw.gauss(0, 0.2) for _ in range(9)])
        held += found.low <= 3 <= found.high
    assert 935 <= held <= 975


def test_one_wild_measurement_among_many_hardly_moves_the_value():
    calm = [1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99, 1.0, 1.0]
    assert location([*calm, 50.0]).value == pytest.approx(1.0, abs=0.01)


def test_fewer_than_six_pairs_are_refused():
    with pytest.raises(ValueError, match="at least 6"):
        location([1.0] * 5)


def test_a_ratio_and_its_inverse_tell_the_same_story():
    ours, theirs = [1.0, 1.2, 0.9, 1.1, 1.3, 1.0, 1.2], [2.0, 2.1, 2.2, 1.9, 2.0, 2.3, 2.2]
    there, back = ratio(ours, theirs), ratio(theirs, ours)
    assert there.value == pytest.approx(1 / back.value)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


def test_pairs_cancel_what_both_sides_share():
    draw = random.Random(2)
    load = [draw.uniform(1, 5) for _ in range(12)]
    found = ratio([1.02 * x for x in load], load)
    assert (found.low, found.value, found.high) == pytest.approx((1.02, 1.02, 1.02))


def test_every_round_has_every_side_once_and_the_order_changes():
    rounds = list(shuffled_rounds(["a", "b", "c"], 20, seed=0))
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 3
    assert rounds == list(shuffled_rounds(["a", "b", "c"], 20, seed=0))
