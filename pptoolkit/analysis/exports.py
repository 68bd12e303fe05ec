"""A run's events for other programs: CSV and Parquet tables, and a trace that Perfetto opens. Times are on rank 0's clock."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from pptoolkit.errors import RunError
from pptoolkit.telemetry.events import Op

_WHOLE = (int(Op.STEP), int(Op.SCHEDULE))
_LAYERS = (int(Op.LAYER_FORWARD), int(Op.LAYER_BACKWARD))
_NAMES = {int(op): op.name.lower() for op in Op}
_BATCH = 20_000


def named_ops(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return the timeline with the name of each op beside its number, as tables for people have it."""
    names = np.array([_NAMES.get(code, "unknown") for code in range(256)])
    named = timeline.copy()
    named.insert(int(named.columns.get_loc("op")) + 1, "op_name", names[named["op"].to_numpy()])  # type: ignore[arg-type]
    return named


def write_csv(timeline: pd.DataFrame, path: Path) -> None:
    """Write one line per event.

    Raises:
        RunError: If the file cannot be written.
    """
    _written(path, lambda partial: pa.csv.write_csv(pa.Table.from_pandas(named_ops(timeline), preserve_index=False), str(partial)))


def write_parquet(timeline: pd.DataFrame, path: Path) -> None:
    """Write one row per event.

    Raises:
        RunError: If the file cannot be written.
    """
    table = pa.Table.from_pandas(named_ops(timeline), preserve_index=False)
    _written(path, lambda partial: pa.parquet.write_table(table, str(partial), compression="zstd"))


def write_perfetto(timeline: pd.DataFrame, path: Path, *, name: str) -> None:
    """Write a trace in the JSON format that Perfetto and chrome://tracing open: a process per rank, a counter for its memory.

    Args:
        timeline: Events on one clock.
        path: Where to.
        name: Name of the run.

    Raises:
        RunError: If the file cannot be written.
    """

    def write(partial: Path) -> None:
        with partial.open("w", encoding="utf-8") as file:
            file.write('{"displayTimeUnit":"ms","otherData":' + json.dumps({"run": name}) + ',"traceEvents":[\n')
            first = True
            for event in trace_events(timeline):
                file.write(("" if first else ",\n") + json.dumps(event, separators=(",", ":")))
                first = False
            file.write("\n]}\n")

    _written(path, write)


def trace_events(timeline: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the trace's events: complete ones (``X``), memory counters (``C``), names of processes and threads (``M``)."""
    tracks = {0: "ops", 1: "waits and messages", 2: "layers", 3: "step"}
    for rank in sorted(int(r) for r in timeline["rank"].unique()):
        yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
        yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
        for track, label in tracks.items():
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": track, "args": {"name": label}}
    rows = timeline[
        (timeline["end_ns"] >= timeline["start_ns"]) & ~timeline["op"].isin((int(Op.CLOCK), int(Op.RECV_POST), int(Op.REDUCE_POST)))
    ]
    origin = int(rows["start_ns"].min()) if len(rows) else 0
    columns = ["step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns", "bytes", "memory_bytes", "rank", "attempt"]
    for at in range(0, len(rows), _BATCH):
        part = rows.iloc[at : at + _BATCH]
        for step, stage, batch, op, peer, start, end, size, memory, rank, attempt in zip(*(part[c].tolist() for c in columns), strict=True):
            label = _NAMES.get(op, "unknown") + (f" {batch}" if batch >= 0 else "")
            args = {"step": step, "stage": stage, "micro_batch": batch, "peer": peer, "bytes": size, "attempt": attempt}
            shown = {key: value for key, value in args.items() if value >= 0}
            begin = (start - origin) / 1e3
            yield {"ph": "X", "name": label, "pid": rank, "tid": _track(op), "ts": begin, "dur": (end - start) / 1e3, "args": shown}
            if memory > 0:
                yield {"ph": "C", "name": "memory", "pid": rank, "ts": (end - origin) / 1e3, "args": {"bytes": memory}}


def _track(op: int) -> int:
    """Ops that overlap others have tracks of their own: within a track, events must nest."""
    if op in _WHOLE:
        return 3
    if op in _LAYERS:
        return 2
    return 1 if op in (int(Op.SEND), int(Op.SEND_WAIT), int(Op.RECV), int(Op.PROBE)) else 0


def _written(path: Path, write: Any) -> None:
    """Write beside ``path`` first and replace it in one step."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        partial.replace(path)
    except OSError as error:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)
        raise RunError(f"cannot write {path}: {error.strerror or error}; choose a writable place with -o") from error
