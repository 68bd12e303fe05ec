"""The heartbeat: a small file per rank that says "alive, and doing this", also while the training thread is stuck.

Unix times are for people and for other hosts; durations are taken from the monotonic clock.
"""

import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.json_files import read_json, replace_text, to_json_line
from pptoolkit.telemetry.recorder import Recorder
from pptoolkit.telemetry.run_directory import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """One sign of life.

    Args:
        status: ``"running"``, or how the rank closed its telemetry.
        op: Op in flight, e.g. ``"forward"``; None between ops. With it its stage, micro-batch and start.
        op_seconds: How long the op in flight had been running, on the monotonic clock.
        dropped: Events lost against the user's will.
        dropped_by_reason: All events that are not on disk, those left out on purpose too.
    """

    rank: int
    attempt: int = 0
    pid: int = 0
    host: str = ""
    status: str = "running"
    unix_s: float = 0.0
    monotonic_ns: int = 0
    step: int = -1
    op: str | None = None
    stage: int = -1
    micro_batch: int = -1
    op_start_unix_s: float | None = None
    op_seconds: float | None = None
    resident_bytes: int | None = None
    host_cpu_ratio: float | None = None
    dropped: int = 0
    dropped_by_reason: Mapping[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> "Heartbeat":
        """Read a heartbeat; keys of a newer release are passed over.

        Raises:
            TypeError: If the rank is missing.
        """
        return cls(**{k: v for k, v in body.items() if k in _FIELDS})

    def write(self, run: RunDirectory) -> None:
        """Replace the rank's heartbeat file.

        Raises:
            OSError: If it cannot be written.
        """
        replace_text(run.heartbeat_path(self.rank), to_json_line(self.to_dict()))


_NAMES = tuple(f.name for f in fields(Heartbeat))
_FIELDS = frozenset(_NAMES)


def take_pulse(recorder: Recorder, *, rank: int, attempt: int, status: str = "running", **extra: Any) -> Heartbeat:
    """Return what a rank is doing right now, read from its recorder; ``extra`` are further fields of the heartbeat."""
    now_ns, unix_s = time.monotonic_ns(), time.time()
    in_flight = recorder.in_flight  # read once: the training thread changes it any time
    doing: dict[str, Any] = {}
    if in_flight is not None:
        op, stage, micro_batch, start_ns = in_flight
        seconds = max(0, now_ns - start_ns) / 1e9
        doing = {"op": Op(op).name.lower(), "stage": stage, "micro_batch": micro_batch}
        doing.update(op_start_unix_s=unix_s - seconds, op_seconds=seconds)
    return Heartbeat(
        rank=rank,
        attempt=attempt,
        pid=os.getpid(),
        host=socket.gethostname(),
        status=status,
        unix_s=unix_s,
        monotonic_ns=now_ns,
        step=recorder.step,
        **doing,
        **extra,
    )


class HeartbeatReader:
    """Reads the heartbeats of one run over and over: what was not replaced since the last look is not read again.

    A heartbeat is never written in place. Its successor is another file, made while it was still there, so it has another inode; one that
    comes to the same inode again is at least two heartbeats younger, which every file system's clock can tell.

    Args:
        run: The run directory; need not exist yet.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._folder = run.path / "heartbeat"
        self._known: dict[str, tuple[tuple[int, int, int], Heartbeat | None]] = {}

    def read(self) -> tuple[Heartbeat, ...]:
        """Return the newest heartbeat of each rank, by rank; unreadable ones are left out."""
        try:
            with os.scandir(self._folder) as entries:
                files = sorted((entry.name, entry) for entry in entries if entry.name.startswith("rank-") and entry.name.endswith(".json"))
        except OSError:
            files = []
        known = {}
        for name, entry in files:
            try:
                stat = entry.stat()
            except OSError:
                continue  # removed since the folder was read
            identity = stat.st_ino, stat.st_mtime_ns, stat.st_size
            old = self._known.get(name)
            known[name] = old if old is not None and old[0] == identity else (identity, _read(entry.path))
        self._known = known  # of the files that are there, so it does not outgrow them
        return tuple(beat for _, beat in known.values() if beat is not None)


def read_heartbeats(run: RunDirectory) -> tuple[Heartbeat, ...]:
    """Return the newest heartbeat of each rank, by rank, read once; unreadable ones are left out."""
    return HeartbeatReader(run).read()


def _read(path: str) -> Heartbeat | None:
    body = read_json(path)
    return Heartbeat.from_dict(body) if isinstance(body, dict) and isinstance(body.get("rank"), int) else None
