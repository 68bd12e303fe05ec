"""Memory per rank: what is always held, what each micro-batch adds, the peak, and the limit where it is known. Imports no Streamlit."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dashboard.levels import in_flight
from dashboard.window import lanes_of
from pptoolkit.telemetry.run_info import RunInfo

_LIMIT = re.compile(r'^pptoolkit_memory_limit_bytes\{[^}]*kind="(host|device)"[^}]*\}\s+([0-9.eE+]+)\s*$')


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank over some steps, in bytes.

    Args:
        least_bytes: Smallest reading: parameters, optimizer, and whatever never goes away.
        peak_bytes: Largest reading.
        per_micro_batch_bytes: Peak above the least, over the micro-batches in flight at the peak; None where there are none.
        in_flight: Most micro-batches in flight.
        limit_bytes: What the device, or else the host, has; None if unknown.
    """

    rank: int
    label: str
    least_bytes: float
    peak_bytes: float
    per_micro_batch_bytes: float | None
    in_flight: int
    limit_bytes: float | None


def rank_memory(timeline: pd.DataFrame, info: RunInfo, limits: dict[int, float]) -> tuple[RankMemory, ...]:
    """Return the memory of each rank that measured any, in the order of the model.

    Args:
        timeline: Events of whole steps.
        info: run.json.
        limits: Bytes by rank, from :func:`read_limits`.
    """
    found = []
    for lane in lanes_of(info.stage_to_rank, ranks=info.ranks):
        mine = timeline[timeline["rank"] == lane.rank]
        readings = mine["memory_bytes"].to_numpy()
        readings = readings[readings > 0]
        if not len(readings):
            continue
        _, levels = in_flight(mine)
        most = int(levels.max()) if len(levels) else 0
        least, peak = float(readings.min()), float(readings.max())
        found.append(
            RankMemory(
                rank=lane.rank,
                label=f"rank {lane.rank} · {lane.stage_label}",
                least_bytes=least,
                peak_bytes=peak,
                per_micro_batch_bytes=(peak - least) / most if most else None,
                in_flight=most,
                limit_bytes=limits.get(lane.rank),
            )
        )
    return tuple(found)


def by_micro_batch(timeline: pd.DataFrame) -> pd.DataFrame:
    """Return rank, micro_batch and mib: the largest reading in a forward of each micro-batch, the mean over the steps."""
    forward = timeline[(timeline["op"] == 0) & (timeline["memory_bytes"] > 0) & (timeline["micro_batch"] >= 0)]
    peaks = forward.groupby(["rank", "step", "micro_batch"], as_index=False)["memory_bytes"].max()
    means: pd.DataFrame = peaks.groupby(["rank", "micro_batch"], as_index=False)["memory_bytes"].mean()
    means["mib"] = means.pop("memory_bytes").astype(np.float64) / (1 << 20)
    return means


def read_limits(run: Path) -> dict[int, float]:
    """Return the memory limit of each rank that wrote one into its metrics file: that of its device, else of its host."""
    found: dict[int, float] = {}
    for path in sorted((run / "metrics").glob("rank-*.prom")):
        digits = path.stem.removeprefix("rank-")
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        kinds = {match[1]: float(match[2]) for match in map(_LIMIT.match, lines) if match}
        limit = kinds.get("device", kinds.get("host"))
        if limit and digits.isdecimal():
            found[int(digits)] = limit
    return found
