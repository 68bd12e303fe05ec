"""The replay of steps that were written by hand: what it takes to wait for what."""

import pytest

from pptoolkit.analysis.replay import Recipe, build_replay
from pptoolkit.analysis.steps import steady_steps
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry.events import Op
from tests.analysis.events import event, table

PERIOD_MS = 45


def early_agreement(step: int, *, posted: bool) -> list[dict[str, int]]:
    """Two ranks whose steps overlap: rank 1 is done, and agrees, while rank 0 still computes, because rank 0 had joined before.

    rank 0   |F0      |S  (joins) ~~~~~ R |B0      |a |            0 to 45
    rank 1   ~~~~~~~~~~~ R |F0     |B0     |S|a|                 -13 to 32, waiting for rank 0 at first
    """
    at = step * PERIOD_MS

    def on(rank: int, op: Op, start: float, end: float, **columns: int) -> dict[str, int]:
        return event(op, at + start, at + end, rank=rank, step=step, **columns)

    first = {"stage": 0, "micro_batch": 0}
    last = {"stage": 1, "micro_batch": 0}
    events = [
        on(0, Op.STEP, 0, 45),
        on(0, Op.FORWARD, 0, 10, **first),
        on(0, Op.SEND, 10, 10.2, **first, peer=1),
        on(0, Op.RECV, 11.5, 30.5, **first, peer=1),
        on(0, Op.BACKWARD, 30.5, 43, **first),
        on(0, Op.REDUCE, 43, 43.1),
        on(0, Op.OPTIMIZER, 43.1, 45),
        on(1, Op.STEP, -13, 32),
        on(1, Op.RECV, -13, 10.5, **last, peer=0),
        on(1, Op.FORWARD, 10.5, 20, **last),
        on(1, Op.BACKWARD, 20, 30, **last),
        on(1, Op.SEND, 30, 30.2, **last, peer=0),
        on(1, Op.REDUCE, 30.2, 30.6),
        on(1, Op.OPTIMIZER, 30.6, 32),
    ]
    return [*events, on(0, Op.REDUCE_POST, 11.4, 11.4)] if posted else events


def replay_of(*, posted: bool):
    timeline = build_timeline(table(row for step in range(6) for row in early_agreement(step, posted=posted)))
    replay = build_replay(steady_steps(timeline, ranks=2))
    assert replay is not None
    return replay


def test_a_rank_that_joined_a_collective_early_is_not_waited_for_at_its_end() -> None:
    replay = replay_of(posted=True)
    assert replay.measured_s == pytest.approx([PERIOD_MS / 1e3] * 6)
    assert replay.error_ratio == pytest.approx(0, abs=0.005)
    _, end = replay.play(Recipe())
    assert end[replay.end[1]] == pytest.approx(replay.nodes.finish_s[1], rel=0.01)


def test_without_the_moment_in_which_it_joined_it_seems_to_be_waited_for() -> None:
    replay = replay_of(posted=False)
    _, end = replay.play(Recipe())
    assert (end[replay.end[1]] > replay.nodes.finish_s[1] + 0.01).all()


def test_faster_compute_on_the_late_rank_shortens_the_step_although_it_joined_early() -> None:
    replay = replay_of(posted=True)
    compute = replay.compute_s.copy()
    backward = replay.nodes.op[replay.compute] == int(Op.BACKWARD)
    late = replay.nodes.rank[replay.compute] == 0
    compute[backward & late] -= 0.005
    assert replay.step_times(Recipe(compute_s=compute)) == pytest.approx([0.040] * 6, rel=0.01)
