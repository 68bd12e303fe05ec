"""What a step yielded: loss, throughput, gradient norm; one JSON line per rank and step, which any tool can read."""

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pptoolkit.telemetry.json_files import to_json_line
from pptoolkit.telemetry.run_directory import RunDirectory

_NAME = re.compile(r"rank-(\d+)\.attempt-(\d+)\.jsonl")
_NUMBERS = ("unix_s", "step_time_s", "loss", "gradient_norm", "learning_rate")
_COUNTS = ("step", "samples", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSummary:
    """The outcome of one step on one rank.

    Args:
        step: Step, counted from 0.
        loss: Mean loss of the step; None on ranks that do not see it.
        samples: Samples that this rank's replica trained on. Counters are summed over ranks, so only one rank of a
            replica (the one with the loss) says so; the others say 0.
        tokens: As ``samples``; 0 where there are none.
        gradient_norm: Global norm before clipping; None where it is not computed.
        learning_rate: Of the first parameter group.
    """

    step: int
    loss: float | None = None
    samples: int = 0
    tokens: int = 0
    gradient_norm: float | None = None
    learning_rate: float | None = None

    def to_line(self, *, step_time_s: float, unix_s: float | None = None) -> str:
        """Return the line that the scalars file gets; NaN and infinities as strings, so that the line is JSON.

        Args:
            step_time_s: Wall time of the step.
            unix_s: When it ended; default: now.
        """
        row = {
            "step": self.step,
            "unix_s": round(time.time() if unix_s is None else unix_s, 3),
            "step_time_s": step_time_s,
            "loss": self.loss,
            "samples": self.samples,
            "tokens": self.tokens,
            "gradient_norm": self.gradient_norm,
            "learning_rate": self.learning_rate,
        }
        return to_json_line(row)


class ScalarWriter:
    """Appends lines to ``scalars/rank-00000.attempt-0.jsonl``, a whole number of lines per write."""

    def __init__(self, run: RunDirectory, *, rank: int, attempt: int = 0) -> None:
        self.path = run.scalars_path(rank, attempt)
        self._torn = False

    def append(self, lines: Sequence[str]) -> None:
        """Write the lines.

        Raises:
            OSError: If they cannot be written; they are lost, and the next append begins on a new line.
        """
        data = ("\n" if self._torn else "").encode() + "".join(lines).encode()
        # Opened anew each time: a deleted folder then shows as an error instead of lines that go nowhere.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._torn = True
            written = 0
            while written < len(data):
                written += os.write(descriptor, data[written:])
            self._torn = False
        finally:
            os.close(descriptor)


class ScalarReader:
    """Reads the scalars of all ranks, live: whole new lines since the last call.

    Attributes:
        skipped_lines: Lines that were no JSON object with a step.
    """

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._offsets: dict[str, int] = {}
        self.skipped_lines = 0

    def poll(self) -> list[dict[str, Any]]:
        """Return the new rows: the fields of the line plus rank and attempt, in the order of the files; maybe none."""
        try:
            names = sorted(os.listdir(self._run.scalars_folder))
        except OSError:
            return []
        rows = []
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None:
                continue
            for line in self._new_lines(self._run.scalars_folder / name):
                row = _parse(line)
                if row is not None:
                    rows.append({**row, "rank": int(match[1]), "attempt": int(match[2])})
                elif line.strip():
                    self.skipped_lines += 1
        return rows

    def _new_lines(self, path: Path) -> list[bytes]:
        offset = self._offsets.get(path.name, 0)
        try:
            with path.open("rb") as file:
                file.seek(offset)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._offsets[path.name] = offset + whole
        return data[:whole].split(b"\n")


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a line's fields with numbers as numbers, or None for a damaged line. Fields of a newer release pass through."""
    try:
        body = json.loads(line)
        if not isinstance(body, Mapping):
            return None
        row: dict[str, Any] = dict(body)
        row.update({k: int(row.get(k) or 0) for k in _COUNTS if k != "step"}, step=int(row["step"]))
        row.update({k: None if row.get(k) is None else float(row[k]) for k in _NUMBERS})
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return row
