"""Schedules as CSV: one row a rank, one action a cell, such as ``0F0``. Blank cells are idle places, as in the field's drawings.

0F0,0F1,,,0B0,,0B1
,1F0,1B0,1F1,1B1,,
"""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from pptoolkit.errors import ScheduleError
from pptoolkit.schedule.actions import Action, Order, Schedule
from pptoolkit.schedule.validation import validate


def schedule_from_orders(name: str, orders: Sequence[Iterable[Action]]) -> Schedule:
    """Return the schedule that these orders are, one a rank; placement and number of micro-batches follow from the actions.

    For a schedule of one's own, written by a generator. It is validated.

    Raises:
        ScheduleError: If it cannot run or is incomplete.
    """
    rows: tuple[Order, ...] = tuple(tuple(order) for order in orders)
    owner: dict[int, int] = {}
    for rank, order in enumerate(rows):
        for action in order:
            owner.setdefault(action.stage, rank)
    if not owner:
        raise ScheduleError(f"schedule {name!r} has no actions; write at least one F and one B for each stage")
    for stage in range(max(owner) + 1):
        if stage not in owner:
            raise ScheduleError(
                f"schedule {name!r} has a stage {max(owner)}, but no rank runs stage {stage}; number the stages from 0 without gaps"
            )
    schedule = Schedule(
        name=name,
        micro_batches=max(action.micro_batch for order in rows for action in order) + 1,
        stage_to_rank=tuple(owner[stage] for stage in range(len(owner))),
        orders=rows,
    )
    validate(schedule)
    return schedule


def format_csv(schedule: Schedule) -> str:
    """Return the schedule as CSV text, without idle places."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([str(action) for action in order] for order in schedule.orders)
    return text.getvalue()


def parse_csv(text: str, *, name: str = "custom") -> Schedule:
    """Read a schedule from CSV text; ``name`` stands in messages and in the schedule. Rows without any cell are skipped.

    Raises:
        ScheduleError: Naming row and column (counted from 1) of a cell that is no action, or what is wrong with the schedule.
    """
    orders: list[Order] = []
    for row, cells in enumerate(csv.reader(io.StringIO(text)), start=1):
        if not any(cell.strip() for cell in cells):
            continue
        order = []
        for column, cell in enumerate(cells, start=1):
            try:
                order.extend([Action.parse(cell)] if cell.strip() else [])
            except ScheduleError as error:
                raise ScheduleError(f"{name}, row {row}, column {column}: {error}") from None
        orders.append(tuple(order))
    try:
        return schedule_from_orders(name, orders)
    except ScheduleError as error:
        raise ScheduleError(f"{name}: {error}") from None


def load_csv(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule from a CSV file; its name is the path, as a plan spells it.

    Raises:
        ScheduleError: If the file cannot be read or the schedule cannot run.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ScheduleError(
            f"cannot read the schedule {path}: {reason}; give the path of a CSV file with one row a rank, cells like 0F0"
        ) from error
    return parse_csv(text, name=str(path))
