import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptoolkit.analysis.statistics import difference_interval, interval_of, median_interval, robust_sigma


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_the_interval_holds_the_median_and_lies_inside_the_range(values):
    median, low, high = median_interval(values)
    assert min(values) <= low <= median <= high <= max(values)
    assert median == pytest.approx(float(np.median(values)))


# Table of exact 95 % ranks for the median (1-based j, k), Le Boudec 2010, annex A.
@pytest.mark.parametrize(("count", "j", "k"), [(6, 1, 6), (9, 2, 8), (12, 3, 10), (20, 6, 15), (30, 10, 21), (70, 27, 44)])
def test_ranks_match_the_published_table(count, j, k):
    _, low, high = median_interval([float(v) for v in range(1, count + 1)])
    assert (low, high) == (j, k)


@pytest.mark.parametrize("count", [9, 40, 150])
def test_the_interval_covers_the_true_median_in_at_least_93_percent_of_the_samples(count):
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(600):
        _, low, high = median_interval(generator.lognormal(0.0, 1.0, count))
        covered += low <= 1.0 <= high
    assert covered / 600 >= 0.93


def test_few_values_give_their_whole_range():
    assert median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)


def test_no_values_are_refused():
    with pytest.raises(ValueError, match="at least one"):
        median_interval([])


def test_difference_of_medians_of_shifted_samples_excludes_zero():
    generator = np.random.default_rng(2)
    before, after = generator.normal(1.0, 0.02, 60), generator.normal(0.9, 0.02, 60)
    found = difference_interval(before, after)
    assert found.low < -0.1 < found.high < 0
    assert found == difference_interval(before, after)


def test_robust_sigma_ignores_a_few_outliers():
    generator = np.random.default_rng(3)
    values = np.concatenate([generator.normal(10.0, 1.0, 500), [1e6] * 5])
    assert robust_sigma(values) == pytest.approx(1.0, rel=0.15)


def test_scaling_scales_every_number():
    assert interval_of([1.0, 2.0, 3.0]).scaled(2.0) == interval_of([2.0, 4.0, 6.0])
