"""What a step records, and what it says when it fails."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from pptoolkit.engine import torch_private
from pptoolkit.telemetry import Event, Flag, Op
from tests.engine import cases
from tests.support.ranks import RankPool

Pools = Callable[[int], RankPool]


def test_this_torch_still_has_every_private_name_we_stand_on() -> None:
    assert torch_private.check() == []


def test_our_hook_is_called_as_torchs_own_and_leaves_room_for_it() -> None:
    calls: list[tuple[str, list[float]]] = []
    x = torch.ones(2, requires_grad=True)
    y = x * 3
    torch_private.call_with_gradient(y, lambda g: calls.append(("ours", g.tolist())))
    torch_private.call_with_gradient(y, lambda g: calls.append(("again", g.tolist())))
    y.register_hook(lambda g: calls.append(("torch's", g.tolist())))
    torch_private.call_with_gradient(x, lambda g: calls.append(("leaf", g.tolist())))
    (y * torch.tensor([1.0, 2.0])).sum().backward()
    assert calls == [("ours", [1, 2]), ("again", [1, 2]), ("torch's", [1, 2]), ("leaf", [3, 6])]


def test_every_op_of_a_step_is_recorded_once(pool: Pools) -> None:
    first, second = ([Event(*row) for row in rows] for rows in pool(2).run(cases.events_of_a_step, micro_batches=4))
    for events, receives_from, sends_to in ((first, 1, 1), (second, 0, 0)):
        counts = Counter(Op(e.op) for e in events)
        assert counts[Op.FORWARD] == counts[Op.BACKWARD] == counts[Op.RECV] == counts[Op.SEND] == counts[Op.RECV_POST] == 4
        assert counts[Op.LAYER_FORWARD] == counts[Op.LAYER_BACKWARD] == 2
        assert {e.peer for e in events if e.op == Op.RECV} == {receives_from}
        assert {e.peer for e in events if e.op == Op.SEND} == {sends_to}
        assert all(e.bytes == 2 * cases.WIDTH * 8 for e in events if e.op in (Op.RECV, Op.SEND))
        assert {e.micro_batch for e in events if e.flags & Flag.SAMPLED} == {1}


def test_layer_times_lie_inside_their_op_and_do_not_overlap(pool: Pools) -> None:
    for rows in pool(2).run(cases.events_of_a_step, micro_batches=4):
        events = [Event(*row) for row in rows]
        for op, layer_op in ((Op.FORWARD, Op.LAYER_FORWARD), (Op.BACKWARD, Op.LAYER_BACKWARD)):
            (whole,) = (e for e in events if e.op == op and e.micro_batch == 1)
            spans = sorted((e.start_ns, e.end_ns) for e in events if e.op == layer_op)
            assert whole.start_ns <= spans[0][0]
            assert spans[-1][1] <= whole.end_ns
            assert all(a[1] <= b[0] for a, b in pairwise(spans))
        backward = {e.peer: e.start_ns for e in events if e.op == Op.LAYER_BACKWARD}
        assert sorted(backward, key=lambda layer: backward[layer]) == sorted(backward, reverse=True)


def test_of_short_ops_memory_is_read_with_one_forward_that_goes_round(pool: Pools) -> None:
    (steps,) = pool(1).run(cases.weighed_in_steps, 5, micro_batches=3)
    assert steps == [[(Op.FORWARD, m)] for m in (0, 1, 2, 0, 1)]


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_exception_names_rank_stage_micro_batch_and_cause(pool: Pools, where: str) -> None:
    (answer,) = pool(1).run(cases.fails_in, 3, where)
    assert answer == ("StageError", f"{where} failed at rank 0, stage 0, micro-batch 3, step 2: ValueError: {where} went wrong")
