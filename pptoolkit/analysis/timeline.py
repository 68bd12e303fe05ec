"""The timeline: the events of all ranks in one data frame, on rank 0's clock."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.grouping import groups_of
from pptoolkit.telemetry.clock import ClockMap, ClockOffset
from pptoolkit.telemetry.event_reader import READER_SCHEMA
from pptoolkit.telemetry.events import Op

TIMELINE_COLUMNS: tuple[str, ...] = tuple(READER_SCHEMA.names)


def build_timeline(events: pa.Table, clocks: Mapping[tuple[int, int], ClockMap] | None = None) -> pd.DataFrame:
    """Return events as a data frame with start_ns and end_ns on rank 0's clock, ordered by attempt, start and rank.

    CLOCK events are used up by the alignment and do not appear.

    Args:
        events: What an :class:`~pptoolkit.telemetry.EventReader` returned.
        clocks: The clock of each (rank, attempt), where ``events`` are only a part and the CLOCK events lie elsewhere.

    Returns:
        The columns of an event plus rank, replica and attempt.
    """
    clocks = read_clocks(events) if clocks is None else clocks
    timed = pc.not_equal(events["op"], int(Op.CLOCK))
    frame = (events if pc.all(timed).as_py() is not False else events.filter(timed)).to_pandas()
    if clocks and len(frame):
        _align(frame, clocks)
    order = np.lexsort((frame["rank"].to_numpy(), frame["start_ns"].to_numpy(), frame["attempt"].to_numpy()))
    ordered: pd.DataFrame = frame.take(order).reset_index(drop=True)
    return ordered


def _align(frame: pd.DataFrame, clocks: Mapping[tuple[int, int], ClockMap]) -> None:
    """Lay the frame's times on rank 0's clock. One sort finds the rows of every clock, however many ranks there are."""
    rank, attempt = frame["rank"].to_numpy(dtype=np.int64), frame["attempt"].to_numpy(dtype=np.int64)
    order = np.lexsort((attempt, rank))
    rank, attempt = rank[order], attempt[order]
    first = np.flatnonzero(np.r_[True, (np.diff(rank) != 0) | (np.diff(attempt) != 0)])
    times = {name: frame[name].to_numpy(dtype=np.int64).copy() for name in ("start_ns", "end_ns")}
    for begin, end in zip(first, [*first[1:], len(order)], strict=True):
        clock = clocks.get((int(rank[begin]), int(attempt[begin])))
        if clock is None:
            continue
        rows = order[begin:end]
        for values in times.values():
            values[rows] = clock.align(values[rows])
    for name, values in times.items():
        frame[name] = values


def read_clocks(events: pa.Table) -> dict[tuple[int, int], ClockMap]:
    """Return the clock of each (rank, attempt) that measured its offset to rank 0."""
    rows = events.filter(pc.equal(events["op"], int(Op.CLOCK))).to_pandas()
    clocks = {}
    for (rank, attempt), group in groups_of(rows, "rank", "attempt"):
        readings = group[["start_ns", "end_ns", "bytes"]].to_numpy()
        clocks[rank, attempt] = ClockMap(ClockOffset(int(local), int(offset), int(uncertainty)) for local, offset, uncertainty in readings)
    return clocks


def clock_uncertainty_ns(events: pa.Table) -> dict[int, int]:
    """Return each rank's median clock uncertainty in nanoseconds over its latest attempt; ranks that never measured are left out."""
    latest: dict[int, tuple[int, int]] = {}
    for (rank, attempt), clock in read_clocks(events).items():
        median = int(np.median([offset.uncertainty_ns for offset in clock.offsets]))
        if rank not in latest or latest[rank][0] < attempt:
            latest[rank] = (attempt, median)
    return {rank: uncertainty for rank, (_, uncertainty) in sorted(latest.items())}
