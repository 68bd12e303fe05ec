"""A daemon thread that does its work every so often, best while training waits, and survives whatever that work throws."""

import threading
import time
from collections.abc import Callable

from pptoolkit.telemetry.drops import Drops, log

ROUND_NS = 5_000_000
"""About what a round of telemetry's work takes in a process whose caches training has swept, on a slow processor several times that."""

LONGEST_STRETCH = 5
"""Work that costs much comes more rarely, but no interval grows to more than this many times what was asked for."""


class Bubbles:
    """The moments in which the training thread is about to wait for other ranks, for those who would rather work then.

    A bubble goes to as many of them as fit into it, to those first who have waited longest: all at once, they would be at
    work long after it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._awaited = 0
        self._offered = 0  # how many may still take the bubble that was announced last

    def announce(self, expected_ns: int) -> None:
        """Say that a wait of about this length begins; for the training thread, which calls it, next to nothing while nobody waits."""
        if self._awaited:
            with self._changed:
                self._offered = max(1, expected_ns // ROUND_NS)
                self._changed.notify(self._offered)

    def interrupt(self) -> None:
        """Have everybody look again whether they still want to wait."""
        with self._changed:
            self._changed.notify_all()

    def wait(self, timeout_s: float, *, unless: Callable[[], bool]) -> None:
        """Return in a bubble, but after ``timeout_s`` at the latest, and as soon as ``unless`` says so."""
        with self._changed:
            if not self._awaited:
                self._offered = 0  # of a bubble that is over
            self._awaited += 1
            try:
                if self._changed.wait_for(lambda: self._offered > 0 or unless(), timeout_s):
                    self._offered = max(0, self._offered - 1)
            finally:
                self._awaited -= 1


def interval_for(asked_s: float, cost_s: float, share: float) -> float:
    """Return the time from a round that took ``cost_s`` of a processor to the next one, so that it takes no more than ``share`` of it.

    It is ``asked_s`` at least, and :data:`LONGEST_STRETCH` times that at most, whatever the share is then.
    """
    return min(max(asked_s, cost_s / share), LONGEST_STRETCH * asked_s)


class Periodic:
    """Does ``work`` every ``interval_s`` until stopped, and once more then.

    Python runs one thread at a time, so what this thread does while the training thread has work to do is time lost for
    training. Work that is due is therefore left for the next bubble, for an interval at most, and each of its parts for one of
    its own; and where a round takes more than its share of the processor's time, because the machine is slow or the
    round large, the next one comes later: the interval grows, up to :data:`LONGEST_STRETCH` times.

    Args:
        name: Name of the thread, and of the work in warnings.
        work: The parts of a round, in order. Each may raise; the others are done all the same.
        interval_s: Least time from one round to the next.
        share: Of one processor's time that the work may take before its rounds become rarer, 0 to 1.
        drops: Where a failure is reported, once.
        bubbles: Tells when the training thread is about to wait.
    """

    def __init__(
        self,
        name: str,
        *work: Callable[[], None],
        interval_s: float,
        drops: Drops,
        share: float = 1.0,
        bubbles: Bubbles | None = None,
    ) -> None:
        self._name, self._work, self._interval_s, self._share, self._drops = name, work, interval_s, share, drops
        self._bubbles = bubbles if bubbles is not None else Bubbles()
        self._changed = threading.Condition()
        self._rounds_asked = self._rounds_done = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"pptoolkit-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def run_now(self, *, timeout_s: float = 5.0) -> bool:
        """Do a round at once and wait for its end; False if it did not end in time."""
        with self._changed:
            self._rounds_asked += 1
            asked = self._rounds_asked
            self._changed.notify_all()
            self._bubbles.interrupt()
            return self._changed.wait_for(lambda: self._rounds_done >= asked, timeout_s)

    def stop(self, *, timeout_s: float = 3.0) -> bool:
        """End the thread after a last round; False if it hangs, e.g. on a dead disk. It is a daemon: the process can end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
            self._bubbles.interrupt()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(self._hurries, max(0.0, due - time.monotonic()))
            self._await_bubble()
            with self._changed:
                asked, last = self._rounds_asked, self._stopping
            spent_s = self._do(self._work[0])
            for part in self._work[1:]:
                self._await_bubble()
                spent_s += self._do(part)
            with self._changed:
                self._rounds_done = asked
                self._changed.notify_all()
            if last:
                return
            due = max(due + interval_for(self._interval_s, spent_s, self._share), time.monotonic())

    def _await_bubble(self) -> None:
        self._bubbles.wait(self._interval_s / len(self._work), unless=self._hurries)

    def _do(self, part: Callable[[], None]) -> float:
        """Do a part of a round; return the seconds of a processor that it took."""
        began_s = time.thread_time()
        try:
            part()
        except Exception as error:
            log.debug("telemetry: %s", self._name, exc_info=True)
            self._drops.warn_once(f"fault in {self._name}", f"{self._name} failed: {type(error).__name__}: {error}; please report this")
        return time.thread_time() - began_s

    def _hurries(self) -> bool:
        return self._stopping or self._rounds_asked > self._rounds_done
