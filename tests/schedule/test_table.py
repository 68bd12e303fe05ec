"""Schedules in and out of CSV."""

from pathlib import Path

import pytest
from hypothesis import given, settings

from pptoolkit.errors import PlanError, ScheduleError
from pptoolkit.schedule import Schedule, build_schedule, format_csv, load_csv, parse_csv, parse_order, schedule_from_orders
from tests.schedule.sizes import TRAINING, schedules


@settings(max_examples=80, deadline=None)
@given(schedules(TRAINING))
def test_what_is_written_is_read_again(schedule: Schedule) -> None:
    again = parse_csv(format_csv(schedule), name=schedule.name)
    assert again == schedule


def test_blank_cells_and_rows_are_idle_places() -> None:
    drawn = parse_csv("0F0,0F1, ,,0B0,,0B1\n,,,\n ,1F0,1B0,1F1,1B1\n\n")
    assert [" ".join(map(str, order)) for order in drawn.orders] == ["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"]
    assert (drawn.micro_batches, drawn.stage_to_rank) == (2, (0, 1))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0\n1F0,1X0\n", r"mine, row 2, column 2: '1X0' is not an action; write stage, kind and micro-batch"),
        ("0F0,B0\n", r"mine, row 1, column 2: 'B0' is not an action"),
        ("", r"mine: schedule 'mine' has no actions"),
        ("0F0,0B0\n2F0,2B0\n", r"mine: schedule 'mine' has a stage 2, but no rank runs stage 1"),
        ("0F0,0B0\n0F0,0B0\n", r"mine: rank 1 owns no stage"),
        ("0F0,0F1,0B0\n", r"mine: rank 0, end of its order: 0B1 never runs"),
        ("0B0,0F0\n1F0,1B0\n", r"mine: rank 0, position 0: 0B0 runs before 0F0"),
    ],
)
def test_a_wrong_table_is_refused_by_place(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        parse_csv(text, name="mine")


def test_a_plan_may_name_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("\ufeff0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    schedule = build_schedule(str(path), ranks=2, micro_batches=2, stages=2)
    assert schedule.name == str(path)
    assert schedule == load_csv(path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"ranks": 3, "micro_batches": 2}, "is a schedule for 2 ranks, but the plan has 3"),
        ({"ranks": 2, "micro_batches": 8}, "is a schedule for 2 micro-batches, but the plan has 8"),
        ({"ranks": 2, "micro_batches": 2, "stages": 4}, "is a schedule for 2 stages, but the plan has 4"),
    ],
)
def test_a_file_for_other_sizes_is_refused_with_both_numbers(tmp_path: Path, asked: dict[str, int], message: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(format_csv(build_schedule("1f1b", ranks=2, micro_batches=2)))
    with pytest.raises(PlanError, match=message):
        build_schedule(str(path), **asked)


def test_a_file_that_is_missing_or_not_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match=r"cannot read the schedule .*none.csv: No such file"):
        build_schedule(str(tmp_path / "none.csv"), ranks=2, micro_batches=2)
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00\x9f")
    with pytest.raises(ScheduleError, match=r"cannot read the schedule .*bytes.csv"):
        load_csv(tmp_path / "bytes.csv")


def test_orders_of_ones_own_become_a_schedule_with_placement_and_size() -> None:
    mine = schedule_from_orders("mine", [parse_order("0F0 3F0 3B0 0B0"), parse_order("1F0 2F0 2B0 1B0")])
    assert (mine.stage_to_rank, mine.micro_batches) == ((0, 1, 1, 0), 1)
