"""What telemetry lost: counted by reason, said once each on stderr, never raised."""

import logging
import threading
from enum import StrEnum

log = logging.getLogger("pptoolkit.telemetry")


class Reason(StrEnum):
    """Why events were dropped; the values of the metric's label."""

    BUFFER_FULL = "buffer_full"
    WRITE_FAILED = "write_failed"
    INVALID = "invalid"  # not an event, or of a stage that this rank does not own
    SAMPLING = "sampling"  # left out on purpose: detail = {every = n}
    RETENTION = "retention"  # the oldest event files were removed to stay below max_bytes
    INTERNAL = "internal"  # a fault of telemetry itself


class Drops:
    """Counts and warnings of one rank; every thread of telemetry may use it.

    Args:
        rank: Named in each warning.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._lock = threading.RLock()  # reentrant: a signal handler may close telemetry at any point
        self._counts = dict.fromkeys(Reason, 0)
        self._warned: set[str] = set()

    def add(self, reason: Reason, count: int) -> None:
        with self._lock:
            self._counts[reason] += count

    @property
    def counts(self) -> dict[str, int]:
        """Events dropped so far, by reason."""
        with self._lock:
            return {str(reason): count for reason, count in self._counts.items()}

    @property
    def total(self) -> int:
        """Events lost against the user's will: all but those that sampling left out or that had to make room."""
        return sum(count for reason, count in self.counts.items() if reason not in (Reason.SAMPLING, Reason.RETENTION))

    def warn_once(self, subject: str, message: str) -> None:
        """Log ``message`` unless something was logged about ``subject`` before."""
        with self._lock:
            if subject in self._warned:
                return
            self._warned.add(subject)
        log.warning("rank %d: telemetry: %s; training goes on", self._rank, message)
