"""The names of a rank's files, and the order in which they were written."""

import os
import re
from pathlib import Path
from typing import NamedTuple

_EVENTS = re.compile(r"rank-(\d+)\.attempt-(\d+)\.seg-(\d+)\.arrows")
_SCALARS = re.compile(r"rank-(\d+)\.attempt-(\d+)()\.jsonl")


class RankFile(NamedTuple):
    """An event file, or a scalar file (segment 0) of one rank; sorts in the order of writing."""

    attempt: int
    segment: int
    path: Path


def parse_name(name: str) -> tuple[int, int, int] | None:
    """Return (rank, attempt, segment) of an event or scalar file's name; None for any other name."""
    match = _EVENTS.fullmatch(name) or _SCALARS.fullmatch(name)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match is not None else None


def rank_files(folder: Path, rank: int) -> list[RankFile]:
    """Return a rank's event or scalar files in ``folder``, in the order in which they were written; none where it cannot be read."""
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    found = []
    for name in names:
        parsed = parse_name(name)
        if parsed is not None and parsed[0] == rank:
            found.append(RankFile(parsed[1], parsed[2], folder / name))
    return sorted(found)
