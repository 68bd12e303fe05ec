"""Events written as one would draw them, in milliseconds."""

from collections.abc import Iterable

import pyarrow as pa

from pptoolkit.telemetry import Op
from pptoolkit.telemetry.event_reader import READER_SCHEMA

_NONE = dict.fromkeys(("stage", "micro_batch", "peer"), -1)
_ZERO = dict.fromkeys(("step", "bytes", "memory_bytes", "flags", "rank", "replica", "attempt"), 0)


def event(op: Op, start_ms: float, end_ms: float, **columns: int) -> dict[str, int]:
    return {**_NONE, **_ZERO, "op": int(op), "start_ns": round(start_ms * 1e6), "end_ns": round(end_ms * 1e6), **columns}


def table(events: Iterable[dict[str, int]]) -> pa.Table:
    return pa.Table.from_pylist(list(events), schema=READER_SCHEMA)
