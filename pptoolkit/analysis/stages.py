"""The stage table: what each stage computes, holds and waits for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.grouping import duration_s, seconds_by_step
from pptoolkit.analysis.layer_costs import BACKWARD_OPS, FORWARD_OPS
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.errors import PPToolkitError
from pptoolkit.schedule import Schedule, build_schedule
from pptoolkit.simulator import equal_costs, simulate
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.run_info import RunInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One stage over the usable steps; times of all replicas together.

    Args:
        rank: Pipeline rank that owns the stage.
        layers: Indices of its layers, first and the one after the last.
        layer_names: Their names.
        forward: Seconds of a forward op; None if the stage has none.
        backward: Seconds of a backward (I and W added where they are apart); None if the stage has none.
        compute_s: Seconds of compute a step.
        share: Part of the step in which the stage computes, in [0, 1].
        in_flight: Micro-batches whose activations the stage holds at its peak.
        held: The same as seen in the events: most micro-batches between their forward and the end of their backward.
        activation_bytes: What those hold for their backward passes, by the shapes of the stage's layers; 0 where run.json knows none.
        memory_bytes: Largest memory reading of the stage's rank; 0 if none was taken.
        recv_wait_s: Mean seconds a step blocked in receives.
        send_wait_s: Mean seconds a step blocked in sends.
    """

    stage: int
    rank: int
    layers: tuple[int, int]
    layer_names: tuple[str, ...]
    forward: Interval | None
    backward: Interval | None
    compute_s: Interval
    share: float
    in_flight: int
    held: int
    activation_bytes: int
    memory_bytes: int
    recv_wait_s: float
    send_wait_s: float

    def to_dict(self) -> dict[str, object]:
        return {
            "stage": self.stage,
            "rank": self.rank,
            "layers": list(self.layers),
            "layer_names": list(self.layer_names),
            "forward_s": self.forward.to_dict() if self.forward else None,
            "backward_s": self.backward.to_dict() if self.backward else None,
            "compute_s": self.compute_s.to_dict(),
            "share": self.share,
            "in_flight": self.in_flight,
            "held": self.held,
            "activation_bytes": self.activation_bytes,
            "memory_bytes": self.memory_bytes,
            "recv_wait_s": self.recv_wait_s,
            "send_wait_s": self.send_wait_s,
        }


def schedule_of(info: RunInfo) -> Schedule | None:
    """Return what the run executes in a step, every pass of an accumulation, or None where this release cannot build it."""
    try:
        ranks = max(info.stage_to_rank) + 1
        once = build_schedule(info.schedule, ranks=ranks, micro_batches=info.micro_batches, stages=info.stages)
    except PPToolkitError:
        return None
    return once.repeated(info.accumulation)


def stage_table(steady: SteadySteps, info: RunInfo) -> tuple[StageRow, ...]:
    """Return one row per stage that computed in the usable steps, by stage."""
    if not steady.count:
        return ()
    events = steady.events
    schedule = schedule_of(info)
    layers = info.read_plan().stage_layers(len(info.layers)) if info.layers else ()
    compute = _stage_compute(steady) / info.replicas
    rows = []
    for stage in (int(s) for s in compute.columns):
        seconds = compute[stage].to_numpy()
        mine = layers[stage] if stage < len(layers) else range(0)
        here = events[events["stage"] == stage]
        ranks = here["rank"].unique()
        held = most_held(here)
        rows.append(
            StageRow(
                stage=stage,
                rank=info.stage_to_rank[stage] if stage < len(info.stage_to_rank) else stage,
                layers=(mine.start, mine.stop),
                layer_names=tuple(info.layers[i] for i in mine),
                forward=_op_interval(here, FORWARD_OPS),
                backward=_op_interval(here, BACKWARD_OPS),
                compute_s=interval_of(seconds),
                share=float(np.median(seconds / steady.step_times_s)),
                in_flight=schedule.in_flight(stage) if schedule is not None and stage < schedule.stages else 0,
                held=held,
                activation_bytes=held * sum(fact.activation_bytes for fact in info.layer_facts[mine.start : mine.stop]),
                memory_bytes=int(events.loc[events["rank"].isin(ranks), "memory_bytes"].max()),
                recv_wait_s=_mean_seconds(here, (int(Op.RECV),), steady.count * info.replicas),
                send_wait_s=_mean_seconds(here, (int(Op.SEND), int(Op.SEND_WAIT)), steady.count * info.replicas),
            )
        )
    return tuple(rows)


def most_held(rows: pd.DataFrame) -> int:
    """Return how many micro-batches a stage held at most on one rank: begun in a forward, not yet through their last backward.

    Args:
        rows: The stage's events.
    """
    begun = rows[rows["op"].isin(FORWARD_OPS)]
    ended = rows[rows["op"].isin([int(Op.BACKWARD), int(Op.BACKWARD_WEIGHT)])]
    if ended.empty:
        return 0  # without a backward nothing is kept for one
    changes = pd.concat(
        [
            pd.DataFrame({"rank": begun["rank"], "at_ns": begun["start_ns"], "change": 1}),
            pd.DataFrame({"rank": ended["rank"], "at_ns": ended["end_ns"], "change": -1}),
        ]
    )
    # What ends at the moment in which the next begins has made room for it.
    ordered = changes.sort_values(["rank", "at_ns", "change"], kind="stable")
    return int(ordered.groupby("rank")["change"].cumsum().max())


def equal_stages_bubble_ratio(info: RunInfo, rows: Sequence[StageRow]) -> float | None:
    """Return what the schedule itself leaves idle: simulated with equal stages, free links, and the run's mean forward and backward.

    Where this release cannot build the schedule it is what run.json says, or None if that says nothing.
    """
    schedule = schedule_of(info)
    forward = [row.forward.median for row in rows if row.forward]
    backward = [row.backward.median for row in rows if row.backward]
    if schedule is None or not forward or not backward:
        return info.schedule_bubble_ratio or None
    half = float(np.mean(backward)) / 2
    costs = equal_costs(info.stages, forward_s=float(np.mean(forward)), backward_input_s=half, backward_weight_s=half)
    return simulate(schedule, costs).bubble_ratio


def _stage_compute(steady: SteadySteps) -> pd.DataFrame:
    """Return compute seconds: rows are steps, columns are stages, replicas summed."""
    rows = steady.events[steady.events["op"].isin(COMPUTE_CODES)]
    return seconds_by_step(rows, "stage", steps=steady.windows.index)


def _op_interval(rows: pd.DataFrame, codes: tuple[int, ...]) -> Interval | None:
    chosen = rows[rows["op"].isin(codes)]
    if chosen.empty:
        return None
    return interval_of(duration_s(chosen).groupby([chosen["rank"], chosen["step"], chosen["micro_batch"]]).sum().to_numpy())


def _mean_seconds(rows: pd.DataFrame, codes: tuple[int, ...], steps: int) -> float:
    chosen = rows[rows["op"].isin(codes)]
    return float(duration_s(chosen).sum() / steps)
