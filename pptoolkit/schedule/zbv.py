"""ZBV action order: two stages a rank in a V, split backwards, no bubble where F, I and W take equally long. Pure.

The first rank owns the first and the last stage, so a loss turns into a gradient where the micro-batch came in. Two ranks,
four stages, four micro-batches (F, I and W equally long); stages 0 and 3 on rank 0, stages 1 and 2 on rank 1:

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3
    rank 1   ... 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3

Each rank holds at most ``2 p`` of its half-size stages' micro-batches, 1F1B's memory. Source: Qi et al., "Pipeline Parallelism with
Controllable Memory", 2024. It is drawn for at least ``2 p - 1`` micro-batches; fewer run that order without the surplus.
"""

from collections import deque

from pptoolkit.schedule.actions import Action, ActionKind, Order
from pptoolkit.schedule.truncation import keep_micro_batches


def zbv_orders(ranks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank; rank *r* owns stages *r* and ``2 * ranks - 1 - r``."""
    padded = max(micro_batches, 2 * ranks - 1)
    return keep_micro_batches(tuple(_Rank(rank, ranks, padded).order() for rank in range(ranks)), micro_batches)


class _Rank:
    """Writes one rank's order; each call takes the next micro-batch of its stage."""

    def __init__(self, rank: int, ranks: int, micro_batches: int) -> None:
        self.rank, self.ranks, self.micro_batches = rank, ranks, micro_batches
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.actions: list[Action] = []
        self.forwards = {self.down: 0, self.up: 0}
        self.inputs = {self.down: 0, self.up: 0}
        self.later: deque[Action] = deque()

    def order(self) -> Order:
        down, up, below = self.down, self.up, self.ranks - self.rank
        for _ in range(2 * below - 1):  # until the first micro-batch is back from the turn
            self.forward(down)
        for _ in range(self.rank):  # one comes down for each that goes up
            self.forward(up)
            self.forward(down)
        for _ in range(below):
            self.forward(up)
            self.backward(up)
        while self.forwards[up] < self.micro_batches:
            if self.forwards[down] < self.micro_batches:
                self.forward(down)
            self.backward(down)
            self.forward(up)
            self.backward(up)
        for _ in range(self.rank):  # gradients first: the ranks above wait for them
            self.backward_input(down)
            self.backward_input(up)
        for _ in range(below):
            self.backward_input(down)
            self.actions.append(self.later.popleft())
        return (*self.actions, *self.later)

    def forward(self, stage: int) -> None:
        self.actions.append(Action(stage, ActionKind.FORWARD, self.forwards[stage]))
        self.forwards[stage] += 1

    def backward(self, stage: int) -> None:
        self.backward_input(stage)
        self.actions.append(self.later.pop())

    def backward_input(self, stage: int) -> None:
        m = self.inputs[stage]
        self.actions.append(Action(stage, ActionKind.BACKWARD_INPUT, m))
        self.later.append(Action(stage, ActionKind.BACKWARD_WEIGHT, m))
        self.inputs[stage] += 1
