"""``import``: a production trace becomes a run directory.

A model part is a stage here, and each stage stands as one layer: what happened inside it is not in the trace. Where both ends of a
message wait for each other, run.json says so (``blocking_links``). Clocks are aligned already.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from pptoolkit.errors import PlanError, PPToolkitError, RunError
from pptoolkit.foreign.trace_schedule import infer_schedule
from pptoolkit.foreign.trace_table import match_messages, read_trace, sends_block
from pptoolkit.plan import Plan
from pptoolkit.schedule import Schedule, build_schedule, format_csv
from pptoolkit.simulator import schedule_bubble_ratio
from pptoolkit.telemetry import EventWriter, Op, RunDirectory, RunInfo, RunStatus
from pptoolkit.telemetry.scalars import ScalarWriter, StepSummary

CLOCK_UNCERTAINTY_NS = 10_000  # the traces' authors compare their ranks' times to some ten microseconds
_ALL, _NONE = -1, -1
_COMPUTE = {"forward-compute": Op.FORWARD, "backward-compute": Op.BACKWARD}
# Within one rank (its tensor-parallel group is one row of the trace); between the ends of the model; between the replicas; between all.
_COLLECTIVES = {
    "layernorm-grads-all-reduce": "rank",
    "embedding-grads-all-reduce": "ends",
    "params-all-gather": "replicas",
    "grads-reduce-scatter": "replicas",
    "separate-grads-all-reduce": "replicas",
    "optimizer-clip-main-grad": "all",
}


def import_trace(
    trace: str | os.PathLike[str], output: str | os.PathLike[str], *, schedule: str | None = None, name: str | None = None
) -> RunDirectory:
    """Write a production trace as a run directory at ``output``.

    Args:
        trace: Parquet or CSV file; see :mod:`pptoolkit.foreign.trace_table`.
        output: Where the run goes; a new directory.
        schedule: What the job ran, as a plan spells it; None: inferred from the order of its compute ops.
        name: Name of the run; None: the directory's.

    Raises:
        DataError: If the trace cannot be read or is no pipeline.
        PlanError: If ``schedule`` does not fit the trace.
        RunError: If there is a run at ``output`` already, or it cannot be written.
    """
    target = Path(output)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RunError(f"{target} exists and is not empty; choose another place with -o")
    table = read_trace(trace)
    found = infer_schedule(table) if schedule is None else _given(schedule, table)
    ranks = found.ranks
    messages = match_messages(table)
    info = _info(table, found, name or target.name, Path(trace), blocking_links=sends_block(messages))
    run = RunDirectory.create(target, info)
    if found.name.endswith(".csv"):
        path = run.path / "schedule.csv"
        path.write_text(format_csv(found))
        plan = info.read_plan().evolve(schedule=str(path))
        run.write_info(info.evolve(schedule=str(path), plan=plan.to_dict()))
    run.read_info().read_plan().save(run.plan_path)
    events = _events(table, messages)
    for rank, rows in events.groupby("rank", sort=True):
        writer = EventWriter(run, rank=int(str(rank)), replica=int(str(rank)) // ranks, host="", clock_source="trace")
        columns = ["step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns"]
        body = np.zeros((len(rows), 10), dtype=np.int64)
        body[:, :7] = rows[columns].to_numpy(dtype=np.int64)
        body[rows["op"].to_numpy() == int(Op.CLOCK), 7] = CLOCK_UNCERTAINTY_NS
        writer.append(body)
        writer.close()
    _write_scalars(run, table, info)
    return run


def _given(schedule: str, table: pd.DataFrame) -> Schedule:
    compute = table[table["part"] >= 0]
    ranks, stages = int(table["pipeline_rank"].max()) + 1, int(compute["part"].max()) + 1
    try:
        return build_schedule(schedule, ranks=ranks, stages=stages, micro_batches=_micro_batches(table))
    except PPToolkitError as error:
        raise PlanError(f"schedule {schedule!r} does not fit the trace: {error}") from error


def _micro_batches(table: pd.DataFrame) -> int:
    return int(table.loc[table["optype"] == "forward-compute", "mb_id"].max()) + 1


def _info(table: pd.DataFrame, schedule: Schedule, run_id: str, source: Path, *, blocking_links: bool) -> RunInfo:
    now = time.time()
    stages = schedule.stages
    replicas = int(table["dp_rank"].max()) + 1
    plan = Plan(cuts=tuple(range(1, stages)), schedule=schedule.name, micro_batches=schedule.micro_batches, replicas=replicas)
    return RunInfo(
        run_id=run_id,
        name=run_id,
        status=RunStatus.FINISHED,
        created_unix_s=now,
        updated_unix_s=now,
        config={"import": {"trace": source.name, "steps": int(table["step"].nunique())}},
        layers=tuple(f"stage{stage:02d}" for stage in range(stages)),
        plan=plan.to_dict(),
        stage_to_rank=schedule.stage_to_rank,
        ranks=replicas * schedule.ranks,
        replicas=replicas,
        schedule=schedule.name,
        micro_batches=schedule.micro_batches,
        schedule_bubble_ratio=schedule_bubble_ratio(schedule),
        steps=int(table["step"].nunique()),
        device="",
        blocking_links=blocking_links,
    )


def _events(table: pd.DataFrame, messages: pd.DataFrame) -> pd.DataFrame:
    """Return the trace as events: columns rank, step, stage, micro_batch, op, peer, start_ns, end_ns, in the order of a recorder."""
    ranks = int(table["pipeline_rank"].max()) + 1
    table = table.assign(rank=table["dp_rank"] * ranks + table["pipeline_rank"])
    begins, ends = table.groupby("step")["start_s"].min(), table.groupby("step")["end_s"].max()
    span = ends - begins
    # Each step of the trace counts from its own beginning; here they follow each other.
    origin = (span.cumsum() - span) - begins + 1.0
    parts = [_compute(table), _messages(messages, ranks), _collectives(table), _others(table), _frames(table)]
    events = pd.concat([part.assign(at=part["step"].map(origin)) for part in parts], ignore_index=True)
    for column in ("start", "end"):
        events[f"{column}_ns"] = ((events[f"{column}_s"] + events["at"]) * 1e9).round().astype("int64")
    clocks = pd.DataFrame({"rank": np.arange(1, int(table["rank"].max()) + 1)})
    clocks = clocks.assign(step=-1, stage=-1, micro_batch=-1, op=int(Op.CLOCK), peer=-1, start_ns=0, end_ns=0)
    events = events.sort_values(["rank", "end_ns", "op"], kind="stable")
    return pd.concat([clocks, events], ignore_index=True)


def _rows(rows: pd.DataFrame, op: Any, stage: Any, micro_batch: Any, peer: Any) -> pd.DataFrame:
    found = rows[["rank", "step", "start_s", "end_s"]].assign(op=op)
    return found.assign(stage=stage, micro_batch=micro_batch, peer=peer)


def _compute(table: pd.DataFrame) -> pd.DataFrame:
    rows = table[table["optype"].isin(_COMPUTE)]
    op = rows["optype"].map({name: int(op) for name, op in _COMPUTE.items()})
    return _rows(rows, op, rows["part"], rows["mb_id"], _NONE)


def _messages(rows: pd.DataFrame, ranks: int) -> pd.DataFrame:
    op = pd.Series(np.where(rows["sends"], int(Op.SEND), int(Op.RECV)), index=rows.index)
    rows = rows.assign(rank=rows["dp_rank"] * ranks + rows["pipeline_rank"])
    return _rows(rows, op, rows["part"], rows["mb_id"], rows["peer_part"])


def _collectives(table: pd.DataFrame) -> pd.DataFrame:
    rows = table[table["optype"].isin(_COLLECTIVES)]
    kind = rows["optype"].map(_COLLECTIVES)
    # The groups, in the words of Op.REDUCE. The embedding is tied to the head: the first and the last part of the model.
    last = int(table["part"].max())
    stage = rows["pipeline_rank"].where(kind != "ends", np.where(rows["pipeline_rank"] == 0, 0, last)).where(kind != "all", _ALL)
    peer = stage.where(kind == "replicas", _NONE)
    peer = peer.where(kind != "ends", last - stage)
    return _rows(rows, int(Op.REDUCE), stage, rows["optype"].map(_number(rows)).where(kind == "replicas", _NONE), peer)


def _number(rows: pd.DataFrame) -> dict[str, int]:
    """Tell collectives of the same members apart by their kind, in the column that they have no micro-batch for."""
    return {name: -2 - place for place, name in enumerate(sorted(rows["optype"].unique()))}


def _others(table: pd.DataFrame) -> pd.DataFrame:
    optimizer = table[table["optype"] == "optimizer"]
    pauses = table[(table["optype"] == "gc") & (table["end_s"] > table["start_s"])]
    return pd.concat([_rows(optimizer, int(Op.OPTIMIZER), -1, -1, -1), _rows(pauses, int(Op.PAUSE), -1, -1, -1)])


def _frames(table: pd.DataFrame) -> pd.DataFrame:
    """Return the STEP of each rank, which is the whole step, and its SCHEDULE, from the first to the last op of the pipeline."""
    span = table.groupby("step").agg(start_s=("start_s", "min"), end_s=("end_s", "max"))
    ranks = table[["rank", "step"]].drop_duplicates().join(span, on="step")
    pipeline = table[table["optype"].str.contains("compute|send|recv", regex=True)]
    schedule = pipeline.groupby(["rank", "step"]).agg(start_s=("start_s", "min"), end_s=("end_s", "max")).reset_index()
    return pd.concat([_rows(schedule, int(Op.SCHEDULE), -1, -1, -1), _rows(ranks, int(Op.STEP), -1, -1, -1)])


def _write_scalars(run: RunDirectory, table: pd.DataFrame, info: RunInfo) -> None:
    span = table.groupby("step")["end_s"].max() - table.groupby("step")["start_s"].min()
    lines = [
        StepSummary(step=int(str(step))).to_line(step_time_s=float(seconds), unix_s=info.created_unix_s) for step, seconds in span.items()
    ]
    ScalarWriter(run, rank=0).append(lines)
