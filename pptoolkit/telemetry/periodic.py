"""A daemon thread that does one thing every so often, best while training waits, and survives whatever that thing throws."""

import threading
import time
from collections.abc import Callable

from pptoolkit.telemetry.drops import Drops, log

ROUND_NS = 5_000_000
"""About what a round of telemetry's work takes in a process whose caches training has swept, on a slow processor several times that."""


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


class Periodic:
    """Calls ``work`` every ``interval_s`` until stopped, and once more then.

    Python runs one thread at a time, so what this thread does while the training thread has work to do is time lost for
    training. Work that is due is therefore left for the next bubble, for an interval at most.

    Args:
        name: Name of the thread, and of the work in warnings.
        work: May raise; it is called again all the same.
        drops: Where a failure is reported, once.
        bubbles: Tells when the training thread is about to wait.
    """

    def __init__(self, name: str, work: Callable[[], None], *, interval_s: float, drops: Drops, bubbles: Bubbles | None = None) -> None:
        self._name, self._work, self._interval_s, self._drops = name, work, interval_s, drops
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
            self._bubbles.wait(self._interval_s, unless=self._hurries)
            with self._changed:
                asked, last = self._rounds_asked, self._stopping
            try:
                self._work()
            except Exception as error:
                log.debug("telemetry: %s", self._name, exc_info=True)
                self._drops.warn_once(f"fault in {self._name}", f"{self._name} failed: {type(error).__name__}: {error}; please report this")
            with self._changed:
                self._rounds_done = asked
                self._changed.notify_all()
            if last:
                return
            due = max(due + self._interval_s, time.monotonic())

    def _hurries(self) -> bool:
        return self._stopping or self._rounds_asked > self._rounds_done
