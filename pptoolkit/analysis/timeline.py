"""The timeline: the events of all ranks in one data frame, on rank 0's clock."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.grouping import groups_of
from pptoolkit.telemetry.clock import ClockMap, ClockOffset
from pptoolkit.telemetry.event_reader import READER_SCHEMA
from pptoolkit.telemetry.events import Op

TIMELINE_COLUMNS: tuple[str, ...] = tuple(READER_SCHEMA.names)


def build_timeline(events: pa.Table) -> pd.DataFrame:
    """Return events as a data frame with start_ns and end_ns on rank 0's clock, ordered by attempt, start and rank.

    CLOCK events are used up by the alignment and do not appear.

    Args:
        events: What an :class:`~pptoolkit.telemetry.EventReader` returned.

    Returns:
        The columns of an event plus rank, replica and attempt.
    """
    frame = events.filter(pc.not_equal(events["op"], int(Op.CLOCK))).to_pandas()
    for key, clock in read_clocks(events).items():
        rows = ((frame["rank"] == key[0]) & (frame["attempt"] == key[1])).to_numpy()
        for column in ("start_ns", "end_ns"):
            frame.loc[rows, column] = clock.align(frame.loc[rows, column].to_numpy())
    ordered: pd.DataFrame = frame.sort_values(["attempt", "start_ns", "rank"], kind="stable", ignore_index=True)
    return ordered


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
