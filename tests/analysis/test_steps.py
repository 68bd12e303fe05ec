from pptoolkit.analysis.steps import steady_steps, step_windows
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry import Flag, Op
from tests.analysis.events import event, table


def steps(*rows):
    return build_timeline(table(rows))


def whole(step, start, end, **columns):
    return event(Op.STEP, start, end, step=step, **columns)


def test_a_step_counts_once_all_ranks_have_finished_it_and_not_as_the_first_of_its_shape():
    timeline = steps(
        whole(0, 0, 90, rank=0, flags=int(Flag.FIRST_USE)),
        whole(0, 0, 90, rank=1, flags=int(Flag.FIRST_USE)),
        whole(1, 100, 110, rank=0),
        whole(1, 101, 112, rank=1),
        whole(2, 112, 122, rank=0),
    )
    steady = steady_steps(timeline, ranks=2)
    assert steady.windows.index.tolist() == [1]
    assert steady.step_times_s.tolist() == [0.011]
    assert steady.skipped == {"incomplete on some rank": 1, "first use of a shape": 1}


def test_a_step_lasts_as_long_as_its_slowest_rank_not_from_the_first_start_to_the_last_end():
    # Without a joined end the ranks' steps overlap:  rank 0  |----|----|   rank 1    |----|----|
    windows = step_windows(steps(whole(0, 0, 10, rank=0), whole(0, 6, 16, rank=1)), ranks=2)
    assert windows["step_time_s"].tolist() == [0.010]
    assert windows["end_ns"].tolist() == [16_000_000]


def test_after_a_restart_only_the_latest_attempt_with_usable_steps_counts():
    timeline = steps(
        *(whole(s, 10 * s, 10 * s + 10, attempt=0) for s in range(3)),
        *(whole(s, 1000 + 20 * s, 1020 + 20 * s, attempt=1) for s in (2, 3)),
        whole(4, 2000, 2100, attempt=2, flags=int(Flag.FIRST_USE)),
    )
    steady = steady_steps(timeline, ranks=1)
    assert steady.attempt == 1
    assert steady.windows.index.tolist() == [2, 3]
    assert set(steady.events["attempt"]) == {1}


def test_only_the_most_recent_steps_are_kept():
    timeline = steps(*(whole(s, 10 * s, 10 * s + 10) for s in range(30)))
    assert steady_steps(timeline, ranks=1, last=5).windows.index.tolist() == [25, 26, 27, 28, 29]


def test_an_evaluation_after_a_step_is_no_part_of_it():
    timeline = steps(event(Op.FORWARD, 1, 2, step=3), whole(3, 0, 10), event(Op.FORWARD, 20, 25, step=3))
    inside = steady_steps(timeline, ranks=1).events
    assert inside.loc[inside["op"] == int(Op.FORWARD), "start_ns"].tolist() == [1_000_000]


def test_without_steps_there_is_nothing_and_no_error():
    steady = steady_steps(steps(), ranks=2)
    assert (steady.count, steady.attempt, steady.step_time) == (0, -1, None)
    only_first = steady_steps(steps(whole(0, 0, 10, flags=int(Flag.FIRST_USE))), ranks=1)
    assert only_first.count == 0
    assert only_first.skipped == {"first use of a shape": 1}
