"""ZB-H1 action order: 1F1B with the backward split into I and W, the weight part moved into the bubble. Pure.

Three ranks, four micro-batches (F, I and W equally long):

    rank 0   F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
    rank 1   .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
    rank 2   .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3

Rank *r* delays its weight parts by *r* backwards: the gradient leaves sooner, and every rank holds at most ``p`` micro-batches, the most
that 1F1B holds. Source: Qi et al., "Zero Bubble Pipeline Parallelism", 2024, section 2.
"""

from collections import deque

from pptoolkit.schedule.actions import Action, ActionKind, Order


def zb_h1_orders(ranks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank; stage *r* lives on rank *r*."""
    return tuple(_order(stage, ranks, micro_batches) for stage in range(ranks))


def _order(stage: int, ranks: int, micro_batches: int) -> Order:
    warm_up = min(ranks - 1 - stage, micro_batches)
    order = [Action(stage, ActionKind.FORWARD, m) for m in range(warm_up)]
    later: deque[Action] = deque()
    for m in range(micro_batches):
        if warm_up + m < micro_batches:
            order.append(Action(stage, ActionKind.FORWARD, warm_up + m))
        order.append(Action(stage, ActionKind.BACKWARD_INPUT, m))
        later.append(Action(stage, ActionKind.BACKWARD_WEIGHT, m))
        if m >= stage:
            order.append(later.popleft())
    return (*order, *later)
