"""The steps of a run simulated one by one, each with what its own ops took: what is left of the difference is the simulator's.

:class:`~pptoolkit.planner.predict.Predictor` replays a run from medians, because that is what a plan which nobody has run can be predicted
from; an op that was late once is then nowhere. Here everything takes as long as it did in that very step:

    F1 [host]  recv ~~~~~~~~~~ [host] F2 [host]         F, B, I, W and the host's time around them, as measured
                  waits      ^                          waiting: never taken over, it follows from the schedule
    other rank      F1 [host] | message                 from its op's end until it was there, less what it waited for its receiver
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.grouping import groups_of
from pptoolkit.analysis.links import pair_messages
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.planner.measure import rank_spans
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.schedule import Action, ActionKind
from pptoolkit.simulator import Costs, Program, simulate
from pptoolkit.telemetry.events import Op

_KINDS = {
    int(Op.FORWARD): ActionKind.FORWARD,
    int(Op.BACKWARD): ActionKind.BACKWARD,
    int(Op.BACKWARD_INPUT): ActionKind.BACKWARD_INPUT,
    int(Op.BACKWARD_WEIGHT): ActionKind.BACKWARD_WEIGHT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTimes:
    """Simulated beside measured seconds of each usable step."""

    simulated_s: npt.NDArray[np.float64]
    measured_s: npt.NDArray[np.float64]

    @property
    def error_ratios(self) -> npt.NDArray[np.float64]:
        """Simulated over measured, less 1: positive where the simulation is too slow."""
        return self.simulated_s / self.measured_s - 1.0


def simulate_own_times(steady: SteadySteps, measured: MeasuredStep) -> OwnTimes:
    """Return every usable step as the simulator has it; of several replicas the slowest, as they end a step together.

    Raises:
        PlanError: If this release cannot build the run's schedule.
        ScheduleError: Likewise.
    """
    predictor = Predictor(measured)
    program = Program(predictor.schedule(measured.plan))
    base = measured.costs_under(measured.plan, program.schedule)
    events = steady.events
    messages = pair_messages(events, uncertainty_ns=dict.fromkeys(range(int(events["rank"].max()) + 1), 0))
    spans = rank_spans(steady)
    found: dict[int, float] = {}
    for (step, replica), ops in groups_of(events[events["op"].isin(COMPUTE_CODES)], "step", "replica"):
        sent = messages[(messages["step"] == step) & (messages["replica"] == replica)]
        mine = spans.loc[[(rank, step) for rank in sorted(ops["rank"].unique())]]
        found[step] = max(found.get(step, 0.0), simulate(program, _costs(base, program, ops, sent, mine)).step_time_s)
    steps = steady.windows.loc[sorted(found)]
    return OwnTimes(
        simulated_s=np.asarray([found[step] for step in sorted(found)]), measured_s=steps["step_time_s"].to_numpy(dtype=np.float64)
    )


def _costs(base: Costs, program: Program, ops: pd.DataFrame, sent: pd.DataFrame, spans: pd.DataFrame) -> Costs:
    """Return the costs of one step of one replica; what it does not tell is as in all of them."""
    received = {
        (stage, peer, m): (start, end)
        for stage, peer, m, start, end, blocked in _rows(
            sent, "dst_stage", "src_stage", "micro_batch", "recv_start_ns", "recv_end_ns", "blocked"
        )
        if blocked
    }
    op_s: dict[Action, float] = {}
    overhead_s: dict[Action, float] = {}
    ended_ns: dict[Action, int] = {}
    trailing_s: list[float] = []
    for (rank, _), first_ns, last_ns in zip(spans.index, spans["first_ns"].tolist(), spans["last_ns"].tolist(), strict=True):
        now = first_ns
        mine = ops[ops["rank"] == rank].sort_values("start_ns")
        for stage, op, m, start, end in _rows(mine, "stage", "op", "micro_batch", "start_ns", "end_ns"):
            action = Action(stage, _KINDS[op], m)
            source = stage - 1 if action.kind is ActionKind.FORWARD else stage + 1
            waits = action.kind is not ActionKind.BACKWARD_WEIGHT and (stage, source, m) in received
            begun, over = received[stage, source, m] if waits else (start, start)
            overhead_s[action] = max(0, begun - now) / 1e9
            op_s[action] = (end - over) / 1e9  # from when its input was there
            ended_ns[action] = now = end
        trailing_s.append(max(0.0, (last_ns - now) / 1e9))
    before = spans["before_s"] - spans["reduce_before_s"] + spans["reduce_before_s"].min()
    if base.joined_end:
        # Ranks that end a step together still begin the next one some time apart. Those that agree early begin it while others still
        # end the last one, so time counts from the beginning of the rank that waits for nobody.
        first_ns = spans["start_ns"].iloc[program.schedule.stage_to_rank[0]]
        before = before.clip(lower=0.0) + (spans["start_ns"] - first_ns) / 1e9
    after = spans["after_s"] - spans["reduce_after_s"] - spans["send_wait_after_s"] + spans["reduce_after_s"].min() + trailing_s
    return replace(
        base,
        overrides=op_s,
        overhead_overrides=overhead_s,
        transfer_overrides=_transfers(base, program, sent, ended_ns),
        send_s=0.0,  # it is part of the host's time
        before_s=dict(enumerate(before.clip(lower=0.0).tolist())),
        after_s=dict(enumerate(after.clip(lower=0.0).tolist())),
    )


def _transfers(base: Costs, program: Program, sent: pd.DataFrame, ended_ns: Mapping[Action, int]) -> dict[Action, float]:
    """Return how long messages were under way from the end of the action that made them, without waiting for their receiver.

    Of one that nobody waited for it is known that it took no longer than until it was asked for; it is taken to be as usual.
    """
    makers = {
        (action.stage, destination, action.micro_batch): action
        for action, destination in zip(program.actions, program.destinations, strict=True)
        if destination >= 0
    }
    found = {}
    columns = ("src_stage", "dst_stage", "micro_batch", "send_start_ns", "recv_start_ns", "transfer_s", "blocked")
    for source, destination, m, sent_ns, asked_ns, transfer_s, blocked in _rows(sent, *columns):
        action = makers.get((source, destination, m))
        if action is None or action not in ended_ns:
            continue
        host_s = max(0, sent_ns - ended_ns[action]) / 1e9
        usual_s = base.transfer_s.get((source, destination), 0.0) + base.send_s
        seconds = transfer_s if blocked else min(usual_s, max(0, asked_ns - sent_ns) / 1e9)
        found[action] = host_s + max(0.0, seconds)
    return found


def _rows(frame: pd.DataFrame, *columns: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(frame[name].tolist() for name in columns), strict=True)
