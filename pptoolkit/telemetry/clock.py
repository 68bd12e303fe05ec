"""Clock arithmetic: how far a rank's clock is from rank 0's, and how to lay all ranks' times on rank 0's. Pure.

    offset_ns = rank 0's clock - this rank's clock, so   time on rank 0 = local time + offset_ns

The exchange that yields the samples (four time stamps a round trip) is the engine's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Times = npt.NDArray[np.int64]
_NEIGHBOURS = 6  # readings on each side


class RoundTrip(NamedTuple):
    """One exchange: asked at ``t0`` and answered at ``t3`` on this rank's clock; ``t1`` in, ``t2`` out on rank 0's."""

    t0_ns: int
    t1_ns: int
    t2_ns: int
    t3_ns: int

    @property
    def delay_ns(self) -> int:
        """Time on the wire, both ways."""
        return (self.t3_ns - self.t0_ns) - (self.t2_ns - self.t1_ns)


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """An offset to rank 0 as it was at ``local_ns``; the truth is within ``uncertainty_ns`` either way."""

    local_ns: int
    offset_ns: int
    uncertainty_ns: int


def estimate_offset(samples: Iterable[Sequence[int]]) -> ClockOffset:
    """Return the offset from the round trip that was shortest, which the network disturbed least.

    The offset is ((t1 - t0) + (t2 - t3)) / 2. Whatever the split of the delay between the two ways, the error is at most half of
    the delay, which is the uncertainty (D. L. Mills, "Internet time synchronization: the network time protocol", 1991).

    Args:
        samples: ``(t0, t1, t2, t3)`` in nanoseconds, as :class:`RoundTrip`.

    Raises:
        ValueError: If there is no sample whose delay is not negative.
    """
    trips = [trip for trip in (RoundTrip(*sample) for sample in samples) if trip.delay_ns >= 0]
    if not trips:
        raise ValueError("no usable round trip: take at least one sample (t0, t1, t2, t3) with (t3 - t0) >= (t2 - t1)")
    best = min(trips, key=lambda trip: trip.delay_ns)
    offset = ((best.t1_ns - best.t0_ns) + (best.t2_ns - best.t3_ns)) // 2
    return ClockOffset((best.t0_ns + best.t3_ns) // 2, offset, max(1, (best.delay_ns + 1) // 2))


class ClockMap:
    """One rank's clock against rank 0's over a run: linear between the known offsets, constant before and after them.

    A reading that a busy host disturbed is drawn to the line through its sharper neighbours, though never out of its own
    uncertainty: clocks drift slowly and steadily, and readings jump.

    Args:
        offsets: In any order; none means that the clocks are the same (rank 0, or a run that never measured).
    """

    def __init__(self, offsets: Iterable[ClockOffset] = ()) -> None:
        known = sorted({o.local_ns: o for o in offsets}.values(), key=lambda o: o.local_ns)
        self.offsets = tuple(known)
        self._at = np.array([o.local_ns for o in known], dtype=np.int64)
        self._uncertainty = np.array([o.uncertainty_ns for o in known], dtype=np.int64)
        self._offset = _steady(self._at, np.array([o.offset_ns for o in known], dtype=np.int64), self._uncertainty)

    def align(self, local_ns: npt.ArrayLike) -> Times:
        """Return local times, in nanoseconds, on rank 0's clock."""
        times = np.asarray(local_ns, dtype=np.int64)
        aligned: Times = times + self._interpolate(times, self._offset)
        return aligned

    def uncertainty(self, local_ns: npt.ArrayLike) -> Times:
        """Return how far off :meth:`align` may be at these local times, in nanoseconds: the worse of the neighbouring offsets."""
        times = np.asarray(local_ns, dtype=np.int64)
        if not len(self._at):
            return np.zeros_like(times)
        right = np.clip(np.searchsorted(self._at, times), 0, len(self._at) - 1)
        left = np.clip(np.searchsorted(self._at, times, side="right") - 1, 0, len(self._at) - 1)
        worse: Times = np.maximum(self._uncertainty[left], self._uncertainty[right])
        return worse

    def _interpolate(self, times: Times, values: Times) -> Times:
        if not len(self._at):
            return np.zeros_like(times)
        # Relative to the first point: absolute nanoseconds do not fit the 53 bits of a float.
        origin, base = self._at[0], values[0]
        inside = np.interp((times - origin).astype(float), (self._at - origin).astype(float), (values - base).astype(float))
        offsets: Times = np.rint(inside).astype(np.int64) + base
        return offsets


def _steady(at: Times, offset: Times, uncertainty: Times) -> Times:
    """Return each offset on the line through its neighbourhood, weighted by sharpness, within the reading's own uncertainty."""
    steady = offset.copy()
    for i in np.flatnonzero(uncertainty):  # a reading without uncertainty is the truth
        near = slice(max(0, i - _NEIGHBOURS), i + _NEIGHBOURS + 1)
        # Relative to the reading: absolute nanoseconds do not fit the 53 bits of a float.
        time, change = (at[near] - at[i]).astype(float), (offset[near] - offset[i]).astype(float)
        weight = 1 / np.maximum(uncertainty[near], 1).astype(float) ** 2
        weight /= weight.sum()
        centre, middle = weight @ time, weight @ change
        spread = weight @ (time - centre) ** 2
        slope = weight @ ((time - centre) * (change - middle)) / spread if spread > 0 else 0.0
        moved = np.clip(middle - slope * centre, -uncertainty[i], uncertainty[i])
        steady[i] += round(float(np.clip(moved, change.min(), change.max())))
    return steady


def align(local_ns: npt.ArrayLike, offsets: Iterable[ClockOffset]) -> Times:
    """Return local times on rank 0's clock, given the rank's CLOCK events as :class:`ClockOffset`."""
    return ClockMap(offsets).align(local_ns)
