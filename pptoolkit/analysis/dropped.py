"""What is not on disk, in sentences: how many events, of which ranks, and why."""

from collections.abc import Iterable

from pptoolkit.telemetry.heartbeat import Heartbeat

_WHY_DROPPED = {
    "buffer_full": "came faster than they could be written; raise telemetry.every",
    "write_failed": "could not be written: the disk was full or the directory not writable",
    "invalid": "were no events",
    "sampling": "are of steps that telemetry.every leaves out",
    "retention": "were removed with the oldest files to stay below telemetry.max_bytes",
    "internal": "were lost by a fault of telemetry",
}


def say_dropped(heartbeats: Iterable[Heartbeat]) -> list[str]:
    """Say what is not on disk, each reason once with its ranks."""
    counts: dict[str, dict[int, int]] = {}
    for beat in heartbeats:
        for reason, count in beat.dropped_by_reason.items():
            counts.setdefault(reason, {})[beat.rank] = count
    notes = []
    for reason, by_rank in counts.items():
        ranks = ", ".join(map(str, sorted(by_rank)[:8])) + (" and more" if len(by_rank) > 8 else "")
        notes.append(f"{sum(by_rank.values()):,} events of rank {ranks} {_WHY_DROPPED.get(reason, f'were dropped ({reason})')}")
    return notes
