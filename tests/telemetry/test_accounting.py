import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.telemetry import Op
from pptoolkit.telemetry.accounting import LEAF_STATES, STATE_COLUMNS, STATES, State, split_ended_steps, split_steps
from pptoolkit.telemetry.event_writer import to_rows

Interval = tuple[Op, int, int]


def row(op: int, start_ns: int, end_ns: int, *, step: int = 0) -> tuple[int, ...]:
    return (step, -1, -1, op, -1, start_ns, end_ns, 0, 0, 0)


def split_step(events: list[Interval], *, step_ns: tuple[int, int]) -> dict[State, int]:
    rows, _ = to_rows([*(row(*event) for event in events), row(Op.STEP, *step_ns)])
    (parts,) = split_ended_steps(rows).parts_ns.tolist()
    return dict(zip(STATES, parts, strict=True))


def split(*events: Interval, step: tuple[int, int] = (0, 100)) -> dict[str, int]:
    parts = split_step(list(events), step_ns=step)
    return {str(state): ns for state, ns in parts.items() if ns}


def test_a_step_is_split_as_in_the_picture() -> None:
    #           0        10       20       30       40       50       60       70       80       90      100
    # STEP      |----------------------------------------------------------------------------------------|
    # SCHEDULE           |----------------------------------------|
    # ops          data     F        recv   send  B                   reduce    opt
    assert split(
        (Op.DATA, 2, 8),
        (Op.SCHEDULE, 10, 60),
        (Op.FORWARD, 12, 20),
        (Op.RECV, 20, 30),
        (Op.SEND, 31, 33),
        (Op.SEND_WAIT, 33, 36),
        (Op.BACKWARD, 36, 58),
        (Op.REDUCE, 62, 70),
        (Op.OPTIMIZER, 70, 90),
        (Op.CHECKPOINT, 91, 95),
    ) == {
        "data": 6,
        "compute": 30,
        "recv_wait": 10,
        "send_wait": 5,
        "host": 50 - 30 - 10 - 5,
        "collective": 8,
        "optimizer": 20,
        "checkpoint": 4,
        "unattributed": 100 - 6 - 50 - 8 - 20 - 4,
    }


@pytest.mark.parametrize("op", [op for op in Op if op not in LEAF_STATES and op not in (Op.SCHEDULE, Op.STEP)])
def test_what_is_no_part_of_the_accounting_counts_nothing(op: Op) -> None:
    assert split((op, 10, 90), (Op.FORWARD, 20, 30)) == {"compute": 10, "unattributed": 90}


def test_ops_are_clipped_to_the_step() -> None:
    assert split((Op.FORWARD, -50, 10), (Op.SCHEDULE, 90, 170), (Op.DATA, 200, 300), (Op.RECV, -9, -2)) == {
        "compute": 10,
        "host": 10,
        "unattributed": 80,
    }


def test_nested_and_overlapping_ops_are_counted_once() -> None:
    assert split((Op.FORWARD, 10, 50), (Op.RECV, 20, 30), (Op.DATA, 40, 70)) == {"compute": 40, "data": 20, "unattributed": 40}


def test_an_op_that_ends_before_it_starts_counts_nothing() -> None:
    assert split((Op.FORWARD, 50, 10)) == {"unattributed": 100}


def test_a_step_without_events_is_unattributed_and_one_without_length_is_nothing() -> None:
    assert split() == {"unattributed": 100}
    assert split((Op.FORWARD, 0, 5), step=(7, 7)) == {}


def test_two_schedule_spans_in_a_step_both_hold_host_time() -> None:
    assert split((Op.SCHEDULE, 0, 20), (Op.FORWARD, 5, 15), (Op.OPTIMIZER, 20, 30), (Op.SCHEDULE, 50, 60)) == {
        "host": 20,
        "compute": 10,
        "optimizer": 10,
        "unattributed": 60,
    }


intervals = st.tuples(st.sampled_from(list(Op)), st.integers(-30, 130), st.integers(-30, 130))


def counted_by_hand(events: list[Interval], step: tuple[int, int]) -> dict[State, int]:
    """Decide every nanosecond by itself: the leaf op that began first has it, then the schedule, then nobody."""
    parts = dict.fromkeys(STATES, 0)
    leaves = sorted((e for e in events if e[0] in LEAF_STATES), key=lambda e: (max(e[1], step[0]), -e[2]))
    for t in range(*step):
        owner = next((op for op, start, end in leaves if start <= t < end), None)
        if owner is not None:
            parts[LEAF_STATES[owner]] += 1
        elif any(op is Op.SCHEDULE and start <= t < end for op, start, end in events):
            parts[State.HOST] += 1
        else:
            parts[State.UNATTRIBUTED] += 1
    return parts


@settings(deadline=None)
@given(st.lists(intervals, max_size=12))
def test_the_parts_sum_to_the_wall_time_and_each_nanosecond_is_where_it_belongs(events: list[Interval]) -> None:
    events = [(op, start, end) for op, start, end in events if op is not Op.STEP]
    parts = split_step(events, step_ns=(0, 100))
    assert sum(parts.values()) == 100
    by_hand = counted_by_hand(events, (0, 100))
    assert parts[State.HOST] == by_hand[State.HOST]
    assert parts[State.UNATTRIBUTED] == by_hand[State.UNATTRIBUTED]
    assert sum(parts.values()) == sum(by_hand.values())


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(LEAF_STATES)), st.integers(0, 9), st.integers(0, 9)), max_size=10))
def test_ops_one_after_the_other_are_split_exactly_as_by_hand(pieces: list[tuple[Op, int, int]]) -> None:
    events, at = [], 3
    for op, gap, length in pieces:
        events.append((op, at + gap, at + gap + length))
        at += gap + length
    events.append((Op.SCHEDULE, 5, 40))
    assert split_step(events, step_ns=(0, 100)) == counted_by_hand(events, (0, 100))


run_events = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1), st.sampled_from(list(Op)), st.integers(0, 200), st.integers(0, 200)),
    max_size=40,
)


@settings(deadline=None)
@given(run_events)
def test_many_steps_at_once_give_what_each_gives_alone(rows: list[tuple[int, int, int, Op, int, int]]) -> None:
    frame = pd.DataFrame(rows, columns=["step", "rank", "attempt", "op", "start_ns", "end_ns"]).astype("int64")
    frame[["start_ns", "end_ns"]] += 10**18
    result = split_steps(frame)
    assert (result[list(STATE_COLUMNS)].sum(axis=1) == result["wall_ns"]).all()
    keys = frame[frame.op == Op.STEP][["rank", "attempt", "step"]].drop_duplicates()
    assert sorted(map(tuple, keys.to_numpy())) == [tuple(k) for k in result[["rank", "attempt", "step"]].to_numpy()]
    for found in result.itertuples():
        own = frame[(frame["rank"] == found.rank) & (frame.attempt == found.attempt) & (frame.step == found.step) & (frame.op != Op.STEP)]
        events = list(own[["op", "start_ns", "end_ns"]].itertuples(index=False, name=None))
        alone = split_step(events, step_ns=(found.start_ns, found.end_ns))
        assert [getattr(found, name) for name in STATE_COLUMNS] == list(alone.values())


def test_steps_are_split_as_they_were_recorded_and_what_lies_between_them_belongs_to_none() -> None:
    first = [row(Op.FORWARD, 10, 40), row(Op.OPTIMIZER, 40, 45), row(Op.STEP, 0, 50)]
    between = [row(Op.CHECKPOINT, 50, 80), row(Op.EVAL, 80, 90)]  # they bear the number of the step that has ended
    second = [row(Op.BACKWARD, 100, 160, step=1), row(Op.STEP, 90, 170, step=1)]
    begun = [row(Op.FORWARD, 170, 180, step=2)]
    rows, _ = to_rows([*first, *between, *second, *begun])
    result = split_ended_steps(rows)
    assert (result.start_ns.tolist(), result.end_ns.tolist()) == ([0, 90], [50, 170])
    named = [{str(s): ns for s, ns in zip(STATES, parts, strict=True) if ns} for parts in result.parts_ns.tolist()]
    assert named == [{"compute": 30, "optimizer": 5, "unattributed": 15}, {"compute": 60, "unattributed": 20}]


def test_a_table_without_attempts_or_without_steps_is_split_too() -> None:
    table = pa.table({"step": [4, 4], "rank": [1, 1], "op": [11, 0], "start_ns": [0, 10], "end_ns": [100, 30]})
    (row,) = split_steps(table).to_dict("records")
    assert (row["rank"], row["attempt"], row["step"], row["wall_ns"], row["compute_ns"], row["unattributed_ns"]) == (1, 0, 4, 100, 20, 80)
    empty = split_steps(table.slice(1))
    assert len(empty) == 0
    assert set(STATE_COLUMNS) <= set(empty.columns)
    assert len(split_steps(table.slice(0, 0))) == 0


def test_a_step_begun_anew_counts_as_it_ended_last() -> None:
    table = pa.table({"step": [4, 4], "rank": [0, 0], "op": [11, 11], "start_ns": [0, 200], "end_ns": [100, 250]})
    assert split_steps(table)["wall_ns"].tolist() == [50]


def test_large_clocks_of_a_long_run_lose_no_nanosecond() -> None:
    steps = 1000
    base = np.arange(steps, dtype=np.int64) * 10**13 + 2**62 - 10**17
    events = pd.concat(
        [
            pd.DataFrame({"step": range(steps), "rank": 0, "op": int(op), "start_ns": base + start, "end_ns": base + end})
            for op, start, end in ((Op.STEP, 0, 10**13 - 1), (Op.FORWARD, 1, 10**12 + 2), (Op.SCHEDULE, 0, 10**12 + 5))
        ]
    )
    result = split_steps(events)
    assert result["compute_ns"].unique().tolist() == [10**12 + 1]
    assert result["host_ns"].unique().tolist() == [4]
