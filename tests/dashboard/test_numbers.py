"""Numbers as a person reads them."""

import math

import pytest

from dashboard.charts import numbers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (4.2e-7, "0.42 µs"),
        (64e-6, "64.0 µs"),
        (0.01234, "12.3 ms"),
        (0.9996, "1.00 s"),
        (4.567, "4.57 s"),
        (200, "3 min 20 s"),
        (7300, "2 h 1 min"),
        (None, "–"),
        (math.nan, "–"),
    ],
)
def test_durations_have_the_unit_that_suits_them(seconds: float | None, text: str) -> None:
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(("ratio", "text"), [(0.083, "8.3 %"), (0.436, "44 %"), (0.0997, "10 %"), (-0.021, "-2.1 %"), (None, "–")])
def test_ratios_are_shown_as_percent(ratio: float | None, text: str) -> None:
    assert numbers.percent(ratio) == text


def test_a_gain_carries_its_sign() -> None:
    assert numbers.percent(0.163, signed=True) == "+16 %"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (5 * 1024**3, "5.00 GiB"), (None, "–")])
def test_sizes_are_in_binary_units(count: float | None, text: str) -> None:
    assert numbers.size(count) == text


@pytest.mark.parametrize(("value", "text"), [(2.34567, "2.346"), (12.0, "12.00"), (math.inf, "–")])
def test_a_loss_has_four_digits(value: float, text: str) -> None:
    assert numbers.number(value) == text
