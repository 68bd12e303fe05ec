"""Medians with honest intervals. Pure: numbers in, numbers out; no assumption about the shape of the noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

CONFIDENCE = 0.95
_NORMAL_QUANTILE = 1.959964  # of 0.975
_EXACT_UP_TO = 70  # beyond, the normal approximation of the ranks is off by less than one place

Values: TypeAlias = Sequence[float] | npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median and the interval that holds it with 95 % confidence; ``samples`` values stand behind it."""

    median: float
    low: float
    high: float
    samples: int

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def scaled(self, factor: float) -> "Interval":
        """Return the interval of the values times ``factor`` (not negative)."""
        return Interval(median=self.median * factor, low=self.low * factor, high=self.high * factor, samples=self.samples)

    def to_dict(self) -> dict[str, float | int]:
        return {"median": self.median, "low": self.low, "high": self.high, "samples": self.samples}


def median_interval(values: Values) -> tuple[float, float, float]:
    """Return the median and its 95 % interval by order statistics.

    The interval runs between the j-th and the k-th smallest value, with j and k from the binomial distribution of the number of
    values below the median; nothing but independence is assumed. Fewer than six values cannot reach 95 %: then it is the whole range.
    Source: J.-Y. Le Boudec, "Performance Evaluation of Computer and Communication Systems", EPFL Press 2010, theorem 2.1 and annex A.

    Raises:
        ValueError: If there are no values.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    if not len(ordered):
        raise ValueError("a median needs at least one value")
    low, high = _median_ranks(len(ordered))
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])


def interval_of(values: Values) -> Interval:
    """:func:`median_interval` as an :class:`Interval`."""
    median, low, high = median_interval(values)
    return Interval(median=median, low=low, high=high, samples=len(values))


def robust_sigma(values: Values) -> float:
    """Return the standard deviation that a normal distribution of the same interquartile range would have."""
    if len(values) < 2:
        return 0.0
    lower, upper = np.percentile(np.asarray(values, dtype=np.float64), [25, 75])
    return float(upper - lower) / 1.349


def difference_interval(before: Values, after: Values, *, resamples: int = 2000, seed: int = 0) -> Interval:
    """Return the difference of two medians (after - before) with a 95 % bootstrap percentile interval.

    Source: B. Efron, R. Tibshirani, "An Introduction to the Bootstrap", 1993, chapter 13. The seed is
    fixed: the same runs give the same answer.

    Raises:
        ValueError: If either list is empty.
    """
    first, second = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    if not len(first) or not len(second):
        raise ValueError("a difference of medians needs at least one value on each side")
    generator = np.random.default_rng(seed)
    draws = np.median(generator.choice(second, (resamples, len(second))), axis=1) - np.median(
        generator.choice(first, (resamples, len(first))), axis=1
    )
    low, high = np.percentile(draws, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)])
    return Interval(
        median=float(np.median(second) - np.median(first)), low=float(low), high=float(high), samples=min(len(first), len(second))
    )


@lru_cache(maxsize=512)
def _median_ranks(count: int) -> tuple[int, int]:
    """Return the 0-based ranks of the interval's ends for ``count`` values."""
    if count < 6:
        return 0, count - 1
    if count > _EXACT_UP_TO:
        spread = _NORMAL_QUANTILE * math.sqrt(count) / 2
        low = max(math.floor(count / 2 - spread), 1)
        return low - 1, count - low
    tail, dropped = 2.0**-count, 0  # chance that all values lie on one side of the median, and values left out on each side
    while True:
        tail += math.comb(count, dropped + 1) / 2.0**count
        if tail > (1 - CONFIDENCE) / 2:
            return dropped, count - 1 - dropped
        dropped += 1
