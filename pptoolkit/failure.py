"""When a rank fails: say where and why once, in a file that the launcher reads, and leave the run readable.

Torch-free. The first rank with an error of its own is the cause; those that only lost their peer are its victims.
"""

import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pptoolkit.errors import PeerLostError, PPToolkitError


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailure:
    """One rank's last words."""

    rank: int
    unix_s: float
    kind: str
    message: str
    trace: str
    exit_code: int
    victim: bool  # it only lost a peer

    @classmethod
    def of(cls, error: BaseException, *, rank: int) -> "RankFailure":
        cause = error.__cause__ if isinstance(error, PPToolkitError) and error.__cause__ is not None else error
        return cls(
            rank=rank,
            unix_s=time.time(),
            kind=type(cause).__name__,
            message=str(error) or type(error).__name__,
            trace="".join(traceback.format_exception(cause)),
            exit_code=error.exit_code if isinstance(error, PPToolkitError) else 1,
            victim=isinstance(error, PeerLostError),
        )


def write_failure(folder: Path, failure: RankFailure) -> None:
    """Leave a failure for the launcher; a directory that cannot be written any more is no reason to hide the error itself."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial = folder / f".rank-{failure.rank:05d}.partial"
        partial.write_text(json.dumps(asdict(failure)))
        partial.replace(folder / f"rank-{failure.rank:05d}.json")
    except OSError:
        pass


def read_failures(folder: Path) -> list[RankFailure]:
    """Return the failures of all ranks, the causes before the victims, the earliest first."""
    found = []
    for path in sorted(folder.glob("rank-*.json")):
        try:
            found.append(RankFailure(**json.loads(path.read_text())))
        except (OSError, ValueError, TypeError):
            continue  # torn by the very failure it tells of
    return sorted(found, key=lambda f: (f.victim, f.unix_s))


class Termination:
    """On SIGTERM: run ``flush``, then exit with 143, even while the main thread is stuck inside a library.

    A Python signal handler runs only between two bytecodes of the main thread, which may wait for a dead peer. The
    signal's number is therefore also written to a pipe that a thread of its own reads.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._active = False

    def __enter__(self) -> "Termination":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before: Any = signal.signal(signal.SIGTERM, lambda *_: None)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._active = True
        threading.Thread(target=self._watch, name="pptoolkit-sigterm", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._active:
            self._active = False
            signal.set_wakeup_fd(self._wakeup_before)
            signal.signal(signal.SIGTERM, self._before)
            os.close(self._writer)

    def _watch(self) -> None:
        reader = self._reader
        while numbers := os.read(reader, 64):
            if signal.SIGTERM in numbers and self._active:
                self._flush()
                os._exit(128 + signal.SIGTERM)
        os.close(reader)
