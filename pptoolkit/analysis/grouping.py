"""Groups and sums over event frames, whose keys are whole numbers: ranks, stages, steps, layers."""

from collections.abc import Iterator
from typing import Any, cast

import pandas as pd


def groups_of(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[tuple[int, ...], pd.DataFrame]]:
    """Yield (values of ``columns``, rows with these values), in ascending order of the values."""
    for key, rows in frame.groupby(list(columns), sort=True):
        yield tuple(int(value) for value in cast("tuple[Any, ...]", key)), rows


def duration_s(events: pd.DataFrame) -> "pd.Series[float]":
    """Return the duration of each event in seconds."""
    return cast("pd.Series[float]", (events["end_ns"] - events["start_ns"]) / 1e9)


def seconds_by_step(events: pd.DataFrame, column: str, *, steps: "pd.Index[int]") -> pd.DataFrame:
    """Return summed durations: rows are ``steps``, columns the values of ``column``, 0 where there are no events."""
    sums = duration_s(events).groupby([events["step"], events[column]]).sum().unstack(column)
    return sums.reindex(steps).fillna(0.0)
