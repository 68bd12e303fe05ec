"""The critical path through one step, on steps small enough to draw."""

import pandas as pd

from pptoolkit.analysis.step_path import find_step_path
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry.events import Op
from tests.analysis.events import event, table


def step(*events: dict[str, int]) -> pd.DataFrame:
    return build_timeline(table(events))


def op(kind: Op, rank: int, micro_batch: int, start: float, end: float) -> dict[str, int]:
    return event(kind, start, end, rank=rank, stage=rank, micro_batch=micro_batch)


def drawn(path: tuple[object, ...]) -> list[str]:
    return [f"r{p.rank} {Op(p.op).name[0]}{p.micro_batch}" for p in path]  # type: ignore[attr-defined]


def test_the_path_goes_to_the_rank_that_computes_without_a_pause() -> None:
    # rank 0   |F0|F1|      |B0|  |B1|
    # rank 1      |F0 |B0 |F1 |B1 |
    events = step(
        op(Op.FORWARD, 0, 0, 0, 1),
        op(Op.FORWARD, 0, 1, 1, 2),
        op(Op.FORWARD, 1, 0, 1.2, 3),
        op(Op.BACKWARD, 1, 0, 3, 6),
        op(Op.FORWARD, 1, 1, 6, 8),
        op(Op.BACKWARD, 1, 1, 8, 11),
        op(Op.BACKWARD, 0, 0, 6.2, 7.2),
        op(Op.BACKWARD, 0, 1, 11.2, 12.2),
    )
    assert drawn(find_step_path(events)) == ["r0 F0", "r1 F0", "r1 B0", "r1 F1", "r1 B1", "r0 B1"]


def test_a_rank_that_was_busy_itself_is_on_the_path_and_not_the_input_that_lay_ready() -> None:
    events = step(op(Op.FORWARD, 0, 0, 0, 1), op(Op.FORWARD, 0, 1, 1, 2), op(Op.FORWARD, 1, 0, 1.1, 5), op(Op.FORWARD, 1, 1, 5, 9))
    assert drawn(find_step_path(events)) == ["r0 F0", "r1 F0", "r1 F1"]


def test_a_collective_leads_to_the_rank_that_came_last_and_counts_from_then() -> None:
    events = step(
        op(Op.FORWARD, 0, 0, 0, 2),
        event(Op.REDUCE, 2, 7, rank=0),
        op(Op.FORWARD, 1, 0, 0, 6),
        event(Op.REDUCE, 6, 7, rank=1),
    )
    path = find_step_path(events)
    assert [(p.rank, Op(p.op)) for p in path] == [(1, Op.FORWARD), (0, Op.REDUCE)]
    assert path[-1].start_ns == 6_000_000


def test_replicas_do_not_take_each_others_messages() -> None:
    first = [op(Op.FORWARD, 0, 0, 0, 1), op(Op.FORWARD, 1, 0, 1, 2)]
    second = [{**op(Op.FORWARD, 0, 0, 0, 3), "rank": 2, "replica": 1}, {**op(Op.FORWARD, 1, 0, 3, 4), "rank": 3, "replica": 1}]
    assert [p.rank for p in find_step_path(step(*first, *second))] == [2, 3]


def test_a_step_without_ops_has_no_path() -> None:
    assert find_step_path(step(event(Op.STEP, 0, 9), event(Op.RECV, 0, 9))) == ()
