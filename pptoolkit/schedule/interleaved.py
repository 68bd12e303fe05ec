"""Interleaved 1F1B and interleaved zero-bubble action orders: several stages a rank, micro-batches in groups. Pure.

A rank takes a group of micro-batches through its first stage, then through its second one, and so on, then the next group; backwards
likewise from its last stage. Two ranks, four stages, four micro-batches in groups of two,
interleaved 1F1B (B as long as F):

    rank 0   0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ... 2B2 ... 2B3 0B2 0B3
    rank 1   ... 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3

The zero-bubble one splits B into I and W and delays each W by ``rank`` backwards, which fills the cool-down. Sources: Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021; Qi et al., "Zero Bubble Pipeline
Parallelism", 2024. The papers ask for a multiple of ``p`` micro-batches, in groups of ``p``. Other numbers are split into groups as equal
as possible and of at least ``p``: a smaller group would leave a hole behind every one of its stages, or even deadlock.
"""

from collections import deque
from itertools import pairwise

from pptoolkit.schedule.actions import Action, ActionKind, Order


def interleaved_orders(ranks: int, stages: int, micro_batches: int) -> tuple[Order, ...]:
    """Return interleaved 1F1B under the looped placement; ``stages`` is a multiple of ``ranks``."""
    groups = _groups(ranks, micro_batches)
    return tuple(_fused(rank, ranks, stages, groups) for rank in range(ranks))


def interleaved_zero_bubble_orders(ranks: int, stages: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the interleaved zero-bubble order under the looped placement; ``stages`` is a multiple of ``ranks``."""
    groups = _groups(ranks, micro_batches)
    return tuple(_split(rank, ranks, stages, groups) for rank in range(ranks))


def _groups(ranks: int, micro_batches: int) -> list[range]:
    count = max(1, micro_batches // ranks)
    size, larger = divmod(micro_batches, count)
    edges = [g * size + min(g, larger) for g in range(count + 1)]
    return [range(a, b) for a, b in pairwise(edges)]


def _cells(own: range, groups: list[range]) -> list[tuple[int, int]]:
    """(stage, micro-batch) pairs group by group, within a group stage by stage."""
    return [(stage, m) for group in groups for stage in own for m in group]


def _fused(rank: int, ranks: int, stages: int, groups: list[range]) -> Order:
    own = range(rank, stages, ranks)
    forwards = [Action(stage, ActionKind.FORWARD, m) for stage, m in _cells(own, groups)]
    backwards = [Action(stage, ActionKind.BACKWARD, m) for stage, m in _cells(own[::-1], groups)]
    # The first gradient is back after one group through all stages but the last, and a way down and up the ranks below; on that way
    # every rank alternates F and B, so each hop takes the time of a pair: two forwards for each rank below.
    warm_up = min((len(own) - 1) * len(groups[0]) + 2 * (ranks - 1 - rank), len(forwards))
    order = forwards[:warm_up]
    for index, forward in enumerate(forwards[warm_up:]):
        order += [forward, backwards[index]]
    return tuple(order + backwards[len(forwards) - warm_up :])


def _split(rank: int, ranks: int, stages: int, groups: list[range]) -> Order:
    own = range(rank, stages, ranks)
    forwards = [Action(stage, ActionKind.FORWARD, m) for stage, m in _cells(own, groups)]
    inputs = [Action(stage, ActionKind.BACKWARD_INPUT, m) for stage, m in _cells(own[::-1], groups)]
    # I alone is as short as F, so a gradient is back after one forward for each rank below, not two.
    warm_up = min((len(own) - 1) * len(groups[0]) + (ranks - 1 - rank), len(forwards))
    order = forwards[:warm_up]
    later: deque[Action] = deque()
    for index, backward in enumerate(inputs):
        order += [*forwards[warm_up + index : warm_up + index + 1], backward]
        later.append(Action(backward.stage, ActionKind.BACKWARD_WEIGHT, backward.micro_batch))
        if index >= rank:
            order.append(later.popleft())
    return (*order, *later)
