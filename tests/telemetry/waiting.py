"""Waiting for what another thread or process does, with a limit."""

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], object], *, limit_s: float = 20.0) -> None:
    """Return as soon as ``holds()`` is true; fail when it does not become so."""
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
