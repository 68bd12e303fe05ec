import numpy as np
import pandas as pd
import pytest

from pptoolkit.analysis.regime import change_points, find_regime_changes
from pptoolkit.telemetry.events import Op


def noisy(length, seed, *, sigma=0.03, heavy=False):
    generator = np.random.default_rng(seed)
    noise = generator.standard_t(2.5, length) * sigma if heavy else generator.normal(0, sigma, length)
    return 0.1 * np.maximum(1 + noise, 0.2)


@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_2000_steps_of_steady_noise_raise_no_alarm(seed, heavy):
    assert change_points(noisy(2000, seed, heavy=heavy)) == []


@pytest.mark.parametrize("size", [1.15, 1.3, 2.0, 0.8])
@pytest.mark.parametrize("at", [30, 400, 1900])
@pytest.mark.parametrize("seed", range(5))
def test_a_change_is_found_within_20_steps_at_its_place(size, at, seed):
    values = noisy(2000, seed)
    values[at:] *= size
    found = change_points(values)
    assert len(found) == 1
    place, seen = found[0]
    assert abs(place - at) <= 3
    assert at <= seen < at + 20


def test_two_changes_are_two():
    values = noisy(600, 0)
    values[200:] *= 1.5
    values[400:] /= 1.5
    assert [abs(place - at) <= 3 for (place, _), at in zip(change_points(values), (200, 400), strict=True)] == [True, True]


def test_single_bad_steps_are_no_change():
    values = noisy(500, 1)
    values[::40] *= 8
    assert change_points(values) == []


def test_a_change_names_rank_pass_time_and_size():
    rows = []
    for rank in (0, 1):
        for op in (Op.FORWARD, Op.BACKWARD):
            values = noisy(200, 10 * rank + op, sigma=0.01)
            if rank == 1 and op == Op.BACKWARD:
                values[120:] *= 1.5
            rows += [(rank, step, int(op), value) for step, value in enumerate(values)]
    (change,) = find_regime_changes(pd.DataFrame(rows, columns=["rank", "step", "op", "seconds"]))
    assert (change.rank, change.kind) == (1, "backward")
    assert abs(change.step - 120) <= 2
    assert change.size_ratio == pytest.approx(0.25, abs=0.02)
    assert change.sentence.startswith("from step 1")
    assert "slower" in change.sentence


def test_steps_that_do_not_follow_each_other_have_no_middle():
    rows = [(0, 7 * step, int(Op.FORWARD), 0.1 if step < 50 else 0.2) for step in range(100)]
    assert find_regime_changes(pd.DataFrame(rows, columns=["rank", "step", "op", "seconds"])) == ()
