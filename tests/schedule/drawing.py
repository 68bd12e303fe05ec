"""Draws a schedule as the papers do: a row a rank, a column a unit of time. B, like I and W, takes one unit unless told.

``python -m tests.schedule.drawing`` draws those of docs/schedules.md anew.
"""

import re
from pathlib import Path

from pptoolkit.schedule import ActionKind, Schedule, build_schedule
from pptoolkit.simulator import Costs, schedule_bubble_ratio, simulate

PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
_MARK = re.compile(r"^<!-- drawing: (\S+) ranks=(\d+) micro_batches=(\d+) -->\n(?:\n```text\n.*?\n```\n)?", re.MULTILINE | re.DOTALL)


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


def draw_all(page: str) -> str:
    """Return the text of a page with every drawing that it asks for drawn anew."""
    return _MARK.sub(_drawing, page)


def _drawing(mark: re.Match[str]) -> str:
    name, ranks, micro_batches = mark[1], int(mark[2]), int(mark[3])
    schedule = build_schedule(name, ranks=ranks, micro_batches=micro_batches)
    grid = draw(schedule, stages=schedule.stages > ranks)
    rows = "\n".join(f"rank {rank}   {row}" for rank, row in enumerate(grid.splitlines()))
    numbers = f"bubble {schedule_bubble_ratio(schedule):.0%}"
    if name != "forward":
        numbers += "; in flight, by stage: " + " ".join(str(schedule.in_flight(stage)) for stage in range(schedule.stages))
    return f"<!-- drawing: {name} ranks={ranks} micro_batches={micro_batches} -->\n\n```text\n{rows}\n\n{numbers}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(draw_all(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
