"""1F1B action order: as few forwards as fill the pipeline, then one forward and one backward in turn. Pure.

Three ranks, four micro-batches (B as long as F):

    rank 0   F0 F1 F2 .. .. B0 F3 B1 .. B2 .. B3
    rank 1   .. F0 F1 .. B0 F2 B1 F3 B2 .. B3
    rank 2   .. .. F0 B0 F1 B1 F2 B2 F3 B3

Rank *r* of *p* holds at most ``p - r`` micro-batches, however many there are. Source: Narayanan et al., "PipeDream", 2019,
and "Memory-Efficient Pipeline-Parallel DNN Training", 2021 (the variant that flushes at the end of a step).
"""

from pptoolkit.schedule.actions import Action, ActionKind, Order


def one_f_one_b_orders(ranks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank; stage *r* lives on rank *r*.

    Fewer micro-batches than ranks are fine: the warm-up then takes all of them, and the steady phase is empty or short.
    """
    return tuple(_order(stage, ranks, micro_batches) for stage in range(ranks))


def _order(stage: int, ranks: int, micro_batches: int) -> Order:
    warm_up = min(ranks - 1 - stage, micro_batches)
    order = [Action(stage, ActionKind.FORWARD, m) for m in range(warm_up)]
    for m in range(micro_batches - warm_up):
        order.append(Action(stage, ActionKind.FORWARD, warm_up + m))
        order.append(Action(stage, ActionKind.BACKWARD, m))
    order.extend(Action(stage, ActionKind.BACKWARD, m) for m in range(micro_batches - warm_up, micro_batches))
    return tuple(order)
