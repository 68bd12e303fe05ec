"""Draws a schedule as the papers do: a row a rank, a column a unit of time. B, like I and W, takes one unit unless told."""

from pptoolkit.schedule import ActionKind, Schedule
from pptoolkit.simulator import Costs, simulate


def draw(schedule: Schedule, *, backward: int = 1, stages: bool = False) -> str:
    """Return the grid; ``..`` is an idle place, and ``--`` goes on with the action to its left."""
    length = dict.fromkeys(ActionKind, 1) | {ActionKind.BACKWARD: backward}
    costs = Costs(op_s={(s, kind): float(length[kind]) for s in range(schedule.stages) for kind in ActionKind})
    step = simulate(schedule, costs)
    blank, more = ("...", "---") if stages else ("..", "--")
    rows = [[blank] * round(step.step_time_s) for _ in range(schedule.ranks)]
    for op in step.ops:
        begin, end = round(op.start_s), round(op.end_s)
        rows[op.rank][begin:end] = [str(op.action) if stages else str(op.action)[len(str(op.action.stage)) :]] + [more] * (end - begin - 1)
    return "\n".join(" ".join(row).rstrip(" .") for row in rows)
