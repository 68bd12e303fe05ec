"""Looped breadth-first action order: each stage of a rank takes every micro-batch before the rank's next stage does. Pure.

Two ranks, four stages, two micro-batches (B as long as F):

    rank 0   0F0 0F1 2F0 2F1 ... ... 2B0 2B1 0B0 0B1
    rank 1   ... 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1

It holds every micro-batch, as GPipe does, with a bubble that more stages a rank make smaller. Source: Lamy-Poirier,
"Breadth-First Pipeline Parallelism", 2023.
"""

from pptoolkit.schedule.actions import Action, ActionKind, Order


def looped_bfs_orders(ranks: int, stages: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank under the looped placement; ``stages`` is a multiple of ``ranks``."""
    orders = []
    for rank in range(ranks):
        own = range(rank, stages, ranks)
        forwards = [Action(stage, ActionKind.FORWARD, m) for stage in own for m in range(micro_batches)]
        backwards = [Action(stage, ActionKind.BACKWARD, m) for stage in reversed(own) for m in range(micro_batches)]
        orders.append((*forwards, *backwards))
    return tuple(orders)
