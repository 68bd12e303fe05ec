"""Simulated steps as the Gantt shows them: the same scene as a measured run's, made by the simulator."""

from collections.abc import Mapping

import pandas as pd

from dashboard.timeline_message import Scene
from dashboard.window import lanes_of
from pptoolkit.analysis.steps import step_windows
from pptoolkit.schedule import ActionKind, Schedule
from pptoolkit.simulator import Costs, MemoryCosts, SimulatedStep, equal_costs, simulate
from pptoolkit.simulator.events import EventSettings, to_events
from pptoolkit.telemetry.events import EVENT_SCHEMA, Op


def simulated_scene(step: SimulatedStep, *, number: int = 0, memory: MemoryCosts | None = None) -> Scene:
    """Return a simulated step as a scene whose only step has the number ``number``."""
    schedule = step.program.schedule
    parts = []
    for rank, events in enumerate(to_events([step], EventSettings(first_step=number, memory=memory))):
        parts.append(pd.DataFrame(events, columns=EVENT_SCHEMA.names).assign(rank=rank, replica=0, attempt=0))
    timeline = pd.concat(parts, ignore_index=True)
    return Scene(
        timeline=timeline, steps=step_windows(timeline, ranks=schedule.ranks), lanes=lanes_of(schedule.stage_to_rank, ranks=schedule.ranks)
    )


def op_rows(steps: Mapping[str, Scene]) -> pd.DataFrame:
    """Return every op of simulated steps: step, rank, stage, op, micro_batch, start_ms and end_ms since the step's begin.

    Args:
        steps: Scenes by the name that the first column gives them.
    """
    parts = []
    for name, scene in steps.items():
        ops = scene.timeline[scene.timeline["op"] != int(Op.STEP)]
        ops = ops.assign(
            simulated=name,
            op=ops["op"].map(lambda op: Op(op).name.lower()),
            start_ms=(ops["start_ns"] - scene.start_ns) / 1e6,
            end_ms=(ops["end_ns"] - scene.start_ns) / 1e6,
        )
        parts.append(ops[["simulated", "rank", "stage", "op", "micro_batch", "start_ms", "end_ms"]])
    return pd.concat(parts, ignore_index=True).sort_values(["simulated", "rank", "start_ms"], kind="stable", ignore_index=True)


def ideal_step(schedule: Schedule, *, forward_s: float, backward_s: float) -> SimulatedStep:
    """Return the step of equal stages with free links: what is idle in it is the schedule's own.

    Args:
        schedule: The schedule.
        forward_s: Mean forward of a stage and micro-batch.
        backward_s: Mean backward likewise, I and W together.
    """
    half = backward_s / 2
    return simulate(schedule, equal_costs(schedule.stages, forward_s=forward_s, backward_input_s=half, backward_weight_s=half))


def mean_passes(costs: Costs, stages: int) -> tuple[float, float]:
    """Return the mean forward and the mean backward over the stages, in seconds."""
    forward = [costs.duration_s(stage, ActionKind.FORWARD) for stage in range(stages)]
    backward = [costs.duration_s(stage, ActionKind.BACKWARD) for stage in range(stages)]
    return sum(forward) / stages, sum(backward) / stages
