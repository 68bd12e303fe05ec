"""The runs below a folder: opened once per server, found and forgotten as folders come and go. Imports no Streamlit."""

import gc
import threading
from dataclasses import dataclass
from pathlib import Path

from dashboard.data import WatchedRun
from pptoolkit.errors import PPToolkitError
from pptoolkit.telemetry import list_runs


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A run directory that cannot be read, and why."""

    name: str
    reason: str


def settle() -> None:
    """Tell the garbage collector, once a server, that what was imported stays for good.

    Else each full collection walks over all of pandas, Arrow and Streamlit in the middle of a refresh: some 50 ms.
    """
    gc.collect()
    gc.freeze()


class Catalogue:
    """The runs below a folder, each opened once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._open: dict[Path, WatchedRun] = {}

    def look(self) -> tuple[list[WatchedRun], list[Unreadable]]:
        """Return the readable runs, the most recently begun first, and the others."""
        good: list[WatchedRun] = []
        bad: list[Unreadable] = []
        with self._lock:
            directories = list_runs(self.root)
            for gone in set(self._open) - {directory.path for directory in directories}:
                del self._open[gone]
            for directory in directories:
                try:
                    run = self._open.get(directory.path) or WatchedRun(directory.path)
                except PPToolkitError as error:
                    bad.append(Unreadable(directory.path.name, str(error)))
                    continue
                self._open[directory.path] = run
                good.append(run)
        return sorted(good, key=lambda run: (-run.info.created_unix_s, run.name)), sorted(bad, key=lambda run: run.name)
