"""A daemon thread that does one thing every so often, and survives whatever that thing throws."""

import threading
import time
from collections.abc import Callable

from pptoolkit.telemetry.drops import Drops, log


class Periodic:
    """Calls ``work`` every ``interval_s`` until stopped, and once more then.

    Args:
        name: Name of the thread, and of the work in warnings.
        work: May raise; it is called again all the same.
        drops: Where a failure is reported, once.
    """

    def __init__(self, name: str, work: Callable[[], None], *, interval_s: float, drops: Drops) -> None:
        self._name, self._work, self._interval_s, self._drops = name, work, interval_s, drops
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
            return self._changed.wait_for(lambda: self._rounds_done >= asked, timeout_s)

    def stop(self, *, timeout_s: float = 3.0) -> bool:
        """End the thread after a last round; False if it hangs, e.g. on a dead disk. It is a daemon: the process can end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        due = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._rounds_asked > self._rounds_done, max(0.0, due - time.monotonic()))
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
