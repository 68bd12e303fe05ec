"""The bound on a run's event files: the oldest go first, what they held is counted, and what later events need is kept."""

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.telemetry.event_stream import EventStream
from pptoolkit.telemetry.events import LASTING_OPS
from pptoolkit.telemetry.rank_files import RankFile, rank_files


class Retired(NamedTuple):
    """What was removed.

    Args:
        events: Events that are gone.
        rows: Those that are needed further on (clock readings, probes, ...) and must be written again, as an int64 array of events.
    """

    events: int
    rows: np.ndarray[tuple[int, int], np.dtype[np.int64]]


def retire(folder: Path, *, rank: int, attempt: int, keep_bytes: int, current: Path) -> Retired:
    """Remove a rank's oldest event files until the rest fits ``keep_bytes``; the file being written stays in any case.

    Args:
        folder: Where the event files lie.
        rank: Whose.
        attempt: The attempt that is being written: only its own events can be carried on.
        keep_bytes: Bound of all the rank's files together.
        current: The file being written.

    Raises:
        OSError: If a file cannot be removed.
    """
    sizes = {file: os.stat(file.path).st_size for file in rank_files(folder, rank)}
    excess = sum(sizes.values()) - keep_bytes
    events, kept = 0, [np.empty((0, 10), dtype=np.int64)]
    for file, size in sizes.items():
        if excess <= 0 or file.path == current:
            break
        count, rows = _look_into(file)
        file.path.unlink()
        excess -= size
        events += count
        if file.attempt == attempt:
            events -= len(rows)
            kept.append(rows)
    return Retired(events, np.concatenate(kept))


def _look_into(file: RankFile) -> tuple[int, np.ndarray[tuple[int, int], np.dtype[np.int64]]]:
    """Return how many events a file holds, and those that outlast it."""
    with pa.memory_map(str(file.path)) as source:
        batches = EventStream().feed(source.read_buffer(), closed=True)
    found = [np.empty((0, 10), dtype=np.int64)]
    for batch in batches:
        lasting = batch.filter(pc.is_in(batch["op"], pa.array([int(op) for op in LASTING_OPS], pa.uint8())))
        if lasting.num_rows:
            found.append(np.stack([column.to_numpy(zero_copy_only=False).astype(np.int64) for column in lasting.columns], axis=1))
    return sum(batch.num_rows for batch in batches), np.concatenate(found)
