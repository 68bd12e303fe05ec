"""How far the ranks' clocks are from rank 0's, how sure that is, and how fast they drift apart."""

from dataclasses import dataclass

import pyarrow as pa

from pptoolkit.analysis.timeline import read_clocks
from pptoolkit.telemetry.clock import ClockMap


@dataclass(frozen=True, slots=True, kw_only=True)
class RankClock:
    """One rank's monotonic clock in its latest attempt.

    Args:
        offset_s: Rank 0's clock minus this one, by the sharpest reading, seconds.
        uncertainty_s: How far off that may be either way, seconds.
        readings: Exchanges with rank 0.
        drift_ratio: Seconds by which the offset grows per second; None where the readings cannot tell it from none.
        drift_uncertainty_ratio: How far off the drift may be; None without two readings.
    """

    rank: int
    offset_s: float
    uncertainty_s: float
    readings: int
    drift_ratio: float | None
    drift_uncertainty_ratio: float | None

    def to_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "offset_s": self.offset_s,
            "uncertainty_s": self.uncertainty_s,
            "readings": self.readings,
            "drift_ratio": self.drift_ratio,
            "drift_uncertainty_ratio": self.drift_uncertainty_ratio,
        }


def rank_clocks(events: pa.Table) -> tuple[RankClock, ...]:
    """Return the clock of every rank that compared it with rank 0's, by rank.

    Args:
        events: What an :class:`~pptoolkit.telemetry.EventReader` returned.
    """
    latest: dict[int, tuple[int, ClockMap]] = {}
    for (rank, attempt), clock in read_clocks(events).items():
        if rank not in latest or latest[rank][0] < attempt:
            latest[rank] = (attempt, clock)
    return tuple(_describe(rank, clock) for rank, (_, clock) in sorted(latest.items()))


def _describe(rank: int, clock: ClockMap) -> RankClock:
    sharpest = min(clock.offsets, key=lambda offset: offset.uncertainty_ns)
    first, last = clock.offsets[0], clock.offsets[-1]
    span = last.local_ns - first.local_ns
    drift = (last.offset_ns - first.offset_ns) / span if span > 0 else None
    unsure = (first.uncertainty_ns + last.uncertainty_ns) / span if span > 0 else None
    return RankClock(
        rank=rank,
        offset_s=sharpest.offset_ns / 1e9,
        uncertainty_s=sharpest.uncertainty_ns / 1e9,
        readings=len(clock.offsets),
        drift_ratio=drift if drift is not None and unsure is not None and abs(drift) > unsure else None,
        drift_uncertainty_ratio=unsure,
    )
