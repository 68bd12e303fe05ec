"""Messages on streams: that no schedule can wait in a circle there, and what is recorded of them.

The first part is a picture of streams without a device; the second runs what a GPU runs, on ranks whose "stream" is the host.
"""

import functools
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings

from pptoolkit.analysis.links import pair_messages
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.models import mlp_layers
from pptoolkit.plan import Plan
from pptoolkit.schedule import Action, ActionKind, Schedule, build_schedule
from pptoolkit.schedule.lower import finished_sends, input_of, lower, receive_for
from pptoolkit.telemetry import Event, EventReader, Flag, Op, RunDirectory
from pptoolkit.telemetry.accounting import split_steps
from tests.engine import cases
from tests.engine.test_parity import assert_same, merge
from tests.schedule.sizes import TRAINING, schedules
from tests.support.ranks import RankPool
from tests.trainer import cases as trainer_cases
from tests.trainer import parity

Pools = Callable[[int], RankPool]
LAYERS = functools.partial(mlp_layers, trainer_cases.WIDTH, trainer_cases.DEPTH, dtype=torch.float64)
_SENDS = (ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT)
_RECEIVES = (ActionKind.RECV_ACTIVATION, ActionKind.RECV_GRADIENT)


def stuck(schedule: Schedule, *, lines_per_pair: int) -> int:
    """Return how many actions never run where a line carries its messages one after the other, each until both ends have come to it.

    With two lines per pair each direction has its own; with one, both ways share it.
    """
    finished, programs = finished_sends(schedule), [deque(order) for order in lower(schedule)]
    queues: dict[tuple[int, int, int], deque[Action]] = {}  # (line's first rank, its second, whose end): what waits there
    arrived: set[Action] = set()  # receives
    pending: list[list[Action]] = [[] for _ in programs]  # sends that must be over before the stream goes on

    def queue(source: int, target: int, end: int) -> deque[Action]:
        line = (source, target) if lines_per_pair == 2 else (min(source, target), max(source, target))
        return queues.setdefault((*line, end), deque())

    def advance(rank: int) -> bool:
        if not programs[rank] or any(receive_for(send) not in arrived for send in pending[rank]):
            return False
        action = programs[rank][0]
        if action.kind in _SENDS:
            queue(rank, schedule.stage_to_rank[receive_for(action).stage], rank).append(action)
        elif action.kind in _RECEIVES:
            source = schedule.stage_to_rank[action.stage + (-1 if action.kind is ActionKind.RECV_ACTIVATION else 1)]
            queue(source, rank, rank).append(action)
        else:
            needed = input_of(action, schedule)
            if needed is not None and needed not in arrived:
                return False
            pending[rank] = list(finished[rank].get(action, ()))
        programs[rank].popleft()
        return True

    def carry() -> bool:
        for (first, second, end), mine in list(queues.items()):
            other = queues.get((first, second, second if end == first else first))
            if mine and other and mine[0].kind in _SENDS and receive_for(mine[0]) == other[0]:
                arrived.add(other.popleft())
                mine.popleft()
                return True
        return False

    while any(advance(rank) for rank in range(len(programs))) or carry():
        pass
    return sum(len(program) for program in programs)


@given(schedules(TRAINING))
@settings(max_examples=60, deadline=None)
def test_no_schedule_waits_in_a_circle_where_each_direction_has_a_line_of_its_own(schedule: Schedule) -> None:
    assert stuck(schedule, lines_per_pair=2) == 0


def test_on_one_line_for_both_ways_schedules_do_wait_in_a_circle() -> None:
    names = {
        name for name in ("1f1b", "interleaved-1f1b", "zb-h1", "zbv") for ranks in (2, 3) if stuck(_sized(name, ranks), lines_per_pair=1)
    }
    assert names, "one communicator for both ways would do, and the second one could go"


def _sized(name: str, ranks: int) -> Schedule:
    return build_schedule(name, ranks=ranks, stages=ranks * (2 if name in ("interleaved-1f1b", "zbv") else 1), micro_batches=6)


@pytest.mark.parametrize(("ranks", "schedule", "cuts"), [(2, "zbv", (2, 4, 6)), (3, "1f1b", (2, 5)), (2, "interleaved-1f1b", (2, 4, 6))])
def test_what_runs_on_streams_computes_the_same(pool: Pools, ranks: int, schedule: str, cuts: tuple[int, ...]) -> None:
    named: dict[str, Any] = {"schedule": schedule, "micro_batches": 4, "cuts": cuts, "sampled": True}
    assert_same(merge(pool(ranks).run(cases.train, on_streams=True, **named)), merge(pool(ranks).run(cases.train, **named)))


def test_a_receive_on_a_stream_tells_the_wait_and_claims_no_transfer(pool: Pools) -> None:
    first, second = ([Event(*row) for row in rows] for rows in pool(2).run(cases.events_of_a_step, micro_batches=4, on_streams=True))
    for events, peer in ((first, 1), (second, 0)):
        receives, sends = ([e for e in events if e.op == op] for op in (Op.RECV, Op.SEND))
        assert len(receives) == len(sends) == 4
        assert {e.peer for e in (*receives, *sends)} == {peer}
        assert all(e.flags & Flag.TRANSFER_UNSEEN for e in receives)
        assert all(e.bytes == 2 * cases.WIDTH * 8 for e in (*receives, *sends))
        assert not [e for e in events if e.op == Op.RECV_POST], "the host's time of posting is no time of the stream"
        on_stream = [e for e in events if e.op in (Op.FORWARD, Op.BACKWARD, Op.RECV, Op.SEND, Op.SEND_WAIT)]
        assert all(a.end_ns <= b.start_ns for a, b in pairwise(on_stream)), "one stream does one thing at a time"
        for op, layer_op in ((Op.FORWARD, Op.LAYER_FORWARD), (Op.BACKWARD, Op.LAYER_BACKWARD)):
            (whole,) = (e for e in events if e.op == op and e.micro_batch == 1)
            layers = [e for e in events if e.op == layer_op]
            assert [e.peer for e in sorted(layers, key=lambda e: e.start_ns, reverse=op == Op.BACKWARD)] == sorted(e.peer for e in layers)
            assert whole.start_ns <= min(e.start_ns for e in layers)
            assert max(e.end_ns for e in layers) == whole.end_ns


def test_a_training_on_streams_accounts_for_its_time_and_shows_no_throughput(pool: Pools, tmp_path: Path) -> None:
    plan = Plan(schedule="1f1b", micro_batches=4, cuts=(4,))
    answers = pool(2).run(trainer_cases.train_on_streams, str(tmp_path), plan=plan, accumulation=2, clip_norm=0.05)
    parity.assert_same(parity.merge(answers), parity.one_process(clip_norm=0.05, layers=LAYERS))
    events = EventReader(RunDirectory(tmp_path / "run")).read_all()
    parts = split_steps(events)
    states = [name for name in parts.columns if name.endswith("_ns") and name not in ("start_ns", "end_ns", "wall_ns")]
    assert (parts[states].sum(axis=1) == parts["wall_ns"]).all()
    assert (parts[["compute_ns", "recv_wait_ns", "optimizer_ns"]] > 0).all().all()
    messages = pair_messages(build_timeline(events), uncertainty_ns={0: 0, 1: 0})
    assert len(messages) == 2 * 8 * trainer_cases.STEPS, "both directions, two passes of four micro-batches"
    assert not messages["reliable"].any()
