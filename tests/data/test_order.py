from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptoolkit.data.order import batches, epoch_order, steps_per_epoch
from pptoolkit.errors import DataError


def take(count, *args, **kwargs):
    return [batch.tolist() for batch in islice(batches(*args, **kwargs), count)]


@given(samples=st.integers(0, 300), seed=st.integers(-(2**70), 2**70), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(samples, seed, epoch):
    assert sorted(epoch_order(samples, seed=seed, epoch=epoch)) == list(range(samples))


def test_the_order_is_fixed_for_all_time():
    assert epoch_order(10, seed=0, epoch=0).tolist() == [8, 1, 6, 9, 0, 2, 7, 5, 3, 4]
    assert epoch_order(10, seed=1, epoch=2).tolist() == [7, 5, 2, 6, 4, 0, 1, 3, 8, 9]


def test_seeds_and_epochs_give_orders_of_their_own():
    orders = {tuple(epoch_order(20, seed=seed, epoch=epoch)) for seed in range(10) for epoch in range(10)}
    assert len(orders) == 100


def test_every_sample_is_as_likely_at_every_place():
    orders = np.array([epoch_order(8, seed=seed, epoch=epoch) for seed in range(200) for epoch in range(20)])
    counts = np.array([np.bincount(orders[:, place], minlength=8) for place in range(8)])
    expected = len(orders) / 8
    # 49 degrees of freedom: 99.99 % of fair shuffles stay below 96.
    assert ((counts - expected) ** 2 / expected).sum() < 96


@given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 40),
    start=st.integers(0, 200),
    drop_last=st.booleans(),
    shuffle=st.booleans(),
)
def test_a_run_resumed_at_any_step_sees_what_the_uninterrupted_run_would(samples, batch, start, drop_last, shuffle):
    batch = min(batch, samples)
    options = {"seed": 5, "drop_last": drop_last, "shuffle": shuffle}
    whole = take(start + 5, samples, batch, **options)
    assert take(5, samples, batch, start_step=start, **options) == whole[start:]


def test_an_epoch_sees_each_sample_at_most_once_and_the_next_begins_anew():
    seen = take(6, 10, 3, seed=0)
    first, second = (np.concatenate(half).tolist() for half in (seen[:3], seen[3:]))
    assert len(set(first)) == len(set(second)) == 9
    assert first != second


def test_the_last_incomplete_batch_is_dropped_or_kept():
    assert [len(batch) for batch in take(6, 10, 4, seed=0)] == [4] * 6
    assert [len(batch) for batch in take(6, 10, 4, seed=0, drop_last=False)] == [4, 4, 2] * 2
    assert (steps_per_epoch(10, 4), steps_per_epoch(10, 4, drop_last=False)) == (2, 3)


def test_without_shuffling_samples_come_in_order():
    assert take(3, 6, 2, seed=0, shuffle=False) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_batch_larger_than_the_data_set_is_refused_at_the_call(drop_last):
    with pytest.raises(DataError, match="batch_size=11 is larger than my texts, which has 10 samples; use a smaller batch"):
        batches(10, 11, seed=0, drop_last=drop_last, source="my texts")


@pytest.mark.parametrize(
    ("options", "message"), [({"batch_size": 0}, "batch_size=0"), ({"batch_size": 1, "start_step": -1}, "start_step=-1")]
)
def test_numbers_out_of_range_are_refused(options, message):
    with pytest.raises(DataError, match=message):
        batches(10, seed=0, **options)
