"""The steps of a run simulated one by one, each with what its own ops took: what is left of the difference is the simulator's.

:class:`~pptoolkit.planner.predict.Predictor` replays a run from medians, because that is what a plan which nobody has run can be predicted
from; an op that was late once is then nowhere. Here every F, B, I and W takes as long as it did in that very step, a message travels as
long as its receive blocked for it, and what a rank did before and after its actions is that step's. Who waits for whom, and for how long,
is never taken over: it follows from the schedule.
"""

from dataclasses import dataclass, replace

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
    columns = (ops[name].tolist() for name in ("stage", "op", "micro_batch", "start_ns", "end_ns"))
    overrides = {Action(stage, _KINDS[op], m): (end - start) / 1e9 for stage, op, m, start, end in zip(*columns, strict=True)}
    before = spans["before_s"] - spans["reduce_before_s"] + spans["reduce_before_s"].min()
    after = spans["after_s"] - spans["reduce_after_s"] - spans["send_wait_after_s"] + spans["reduce_after_s"].min()
    return replace(
        base,
        overrides=overrides,
        transfer_overrides=_transfers(base, program, sent),
        action_overhead_s=max(0.0, float((spans["idle_inside_s"] / spans["actions"]).mean())),
        before_s=dict(enumerate(before.clip(lower=0.0).tolist())),
        after_s=dict(enumerate(after.clip(lower=0.0).tolist())),
    )


def _transfers(base: Costs, program: Program, sent: pd.DataFrame) -> dict[Action, float]:
    """Return how long messages travelled whose receive waited for them; of the others nothing is known."""
    makers = {
        (action.stage, destination, action.micro_batch): action
        for action, destination in zip(program.actions, program.destinations, strict=True)
        if destination >= 0
    }
    blocked = sent[sent["blocked"]]
    columns = (blocked[name].tolist() for name in ("src_stage", "dst_stage", "micro_batch", "transfer_s"))
    return {
        makers[source, destination, m]: max(0.0, seconds - base.send_s)
        for source, destination, m, seconds in zip(*columns, strict=True)
        if (source, destination, m) in makers
    }
