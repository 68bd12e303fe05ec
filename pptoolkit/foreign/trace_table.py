"""A production trace as a checked table: one row an op, times in seconds from the start of each step.

The form is that of the traces published with "Understanding Stragglers in Large Model Training Using What-if Analysis" (2025), with
columns dp_rank, stage, rank, step, optype, start_ts, duration, seq_id, mc, mb_id, gmc. ``stage`` is the pipeline rank, ``mc`` the model
part on it and ``gmc`` the part in the model, which is our stage.
"""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from pptoolkit.errors import DataError

COLUMNS = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id", "mc", "mb_id", "gmc")
COMPUTE = ("forward-compute", "backward-compute")
_EPSILON_S = 5e-5  # clocks of two ranks agree to about this


def read_trace(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a trace (parquet, or CSV with the same columns), sorted by rank, step and start.

    Returns:
        Columns dp_rank, pipeline_rank, step, optype, start_s, end_s, seq_id, mc, mb_id, part; ``part`` is the model part, -1 where none is
        meant.

    Raises:
        DataError: If the file cannot be read, lacks a column, is empty, or has times that are no times.
    """
    where = Path(path)
    try:
        raw = pd.read_csv(where) if where.suffix == ".csv" else pd.read_parquet(where)
    except FileNotFoundError as error:
        raise DataError(f"there is no trace at {where}; give the path of a parquet or CSV file") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"cannot read the trace {where}: {error}; it must be parquet, or CSV, with the columns {', '.join(COLUMNS)}"
        ) from error
    missing = [name for name in COLUMNS if name not in raw.columns]
    if missing:
        raise DataError(f"the trace {where} has no column {missing[0]!r}; it needs {', '.join(COLUMNS)}")
    if not len(raw):
        raise DataError(f"the trace {where} has no rows; export at least one whole step")
    # Single precision would round the sum of start and duration.
    start, duration = raw["start_ts"].astype("float64"), raw["duration"].astype("float64")
    bad = ~(np.isfinite(start.to_numpy()) & np.isfinite(duration.to_numpy()) & (duration.to_numpy() >= 0))
    if bad.any():
        row = int(bad.argmax())
        raise DataError(
            f"row {row} of the trace {where} has start_ts={start.iloc[row]}, duration={duration.iloc[row]}; both must be seconds"
        )
    frame = pd.DataFrame(
        {
            "dp_rank": raw["dp_rank"].astype("int64"),
            "pipeline_rank": raw["stage"].astype("int64"),
            "step": raw["step"].astype("int64"),
            "optype": raw["optype"].astype("str"),
            "start_s": start,
            "end_s": start + duration,
            "seq_id": raw["seq_id"].astype("int64"),
            "mc": raw["mc"].fillna(-1).astype("int64"),
            "mb_id": raw["mb_id"].fillna(-1).astype("int64"),
            "part": raw["gmc"].fillna(-1).astype("int64"),
        }
    )
    compute = frame["optype"].isin(COMPUTE)
    if not compute.any():
        raise DataError(f"the trace {where} has no forward-compute or backward-compute op; without them there is no pipeline to look at")
    return frame.sort_values(["dp_rank", "pipeline_rank", "step", "start_s", "end_s"], kind="stable", ignore_index=True)


def match_messages(trace: pd.DataFrame) -> pd.DataFrame:
    """Return one row a message end: who sent or received what, for every send and receive that really took place.

    A receive belongs to the compute op that takes it and a send to the one that made it, in order: the n-th receive of a direction on a
    rank is of its n-th compute op that has an input from another rank. A profiler that also wrote down sends of the last part or
    receives of the first one, which go nowhere, is seen by their number, and these are left out.

    Returns:
        Columns of ``trace`` plus sends (bool), forward (bool), part and mb_id filled in, peer_part.
    """
    last = int(trace["part"].max())
    owner = trace[trace["optype"].isin(COMPUTE)].groupby("part")["pipeline_rank"].first()
    found = []
    key = ["dp_rank", "pipeline_rank", "step"]
    for forward in (True, False):
        name = "forward" if forward else "backward"
        computes = trace[trace["optype"] == f"{name}-compute"].sort_values([*key, "start_s"], kind="stable")
        for sends in (True, False):
            ends = trace[trace["optype"].map(lambda text, n=name, s=sends: f"{n}-{'send' if s else 'recv'}" in text)]
            ends = ends.sort_values([*key, "start_s", "seq_id"], kind="stable")
            peer = computes["part"] + (1 if sends == forward else -1)
            real = peer.between(0, last) & (peer.map(owner) != computes["pipeline_rank"])
            users = computes.assign(peer_part=peer, real=real)
            found.append(_pair(ends, users, key, sends=sends).assign(sends=sends, forward=forward))
    return pd.concat(found, ignore_index=True)


def _pair(ends: pd.DataFrame, users: pd.DataFrame, key: list[str], *, sends: bool) -> pd.DataFrame:
    """Give each send or receive the part and micro-batch of its compute op, by order on its rank and step."""
    count, asked = ends.groupby(key).size(), users.groupby(key).agg(all=("real", "size"), real=("real", "sum"))
    counts = asked.join(count.rename("ends"), how="left").fillna({"ends": 0})
    # As many as real messages: only these were written down. As many as compute ops, or one less: also those that go nowhere.
    only_real = counts["ends"] <= counts["real"]
    users = users.join(only_real.rename("only_real"), on=key)
    users = users[users["real"] | ~users["only_real"]]
    # One receive less than compute ops: the first, which had nothing to receive.
    missing = (counts["all"] - counts["ends"]).where(~only_real & (not sends), 0).clip(lower=0).astype("int64")
    users = users.join(missing.rename("skip"), on=key)
    users["place"] = users.groupby(key).cumcount() - users["skip"]
    ends = ends.assign(place=ends.groupby(key).cumcount()).drop(columns=["part", "mb_id"])
    joined = ends.merge(users[[*key, "place", "part", "mb_id", "peer_part", "real"]], on=[*key, "place"], how="inner")
    return joined[joined["real"]].drop(columns=["real", "place"])


def sends_block(messages: pd.DataFrame) -> bool:
    """Return whether a send lasts until its receive is there: no more than one in twenty was over before.

    Args:
        messages: As returned by :func:`match_messages`.
    """
    key = ["dp_rank", "step", "forward", "mb_id"]
    sends = messages[messages["sends"]].rename(columns={"part": "from_part", "peer_part": "to_part"})
    receives = messages[~messages["sends"]].rename(columns={"part": "to_part", "peer_part": "from_part"})
    pairs = sends.merge(receives, on=[*key, "from_part", "to_part"], suffixes=("_send", "_recv"))
    return bool((pairs["end_s_send"] < pairs["start_s_recv"] - _EPSILON_S).mean() < 0.05) if len(pairs) else True
