"""DualPipeV action order: a V placement whose steady phase pairs a forward with a backward of the rank's other stage. Pure.

The published schedule runs the two of a pair at once to hide communication; here they are neighbours in the list, forward first. A pair
is ``down F, up B`` or ``up F, down B``; backwards are whole where nobody waits for them and split where they fill the cool-down.

    phase                    times              actions (down: the rank's early stage, up: its late one)
    fill                     2 (p - r - 1)      down F
    turn                     r + 1              down F, up F
    first gradients          p - r - 1          up I, up W, up F
    steady                   m - 2 p + r + 1    down F, up B, up F, down B
    no more down F           p - r - 1          up B, up F, down B
    drain                    r + 1              up B, down B: the first half whole, the second half I only
    fill the drain           p - r - 1          W, down I
    rest                     r + 1              W

Two ranks, four stages, four micro-batches (every action equally long):

    rank 0   0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3
    rank 1   ... 1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3

Source: DeepSeek-AI, "DualPipe", 2025, with the V of Qi et al. It is drawn for at least ``2 p`` micro-batches; fewer run that order
without the surplus.
"""

from collections import deque

from pptoolkit.schedule.actions import Action, ActionKind, Order
from pptoolkit.schedule.truncation import keep_micro_batches


def dualpipev_orders(ranks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank; rank *r* owns stages *r* and ``2 * ranks - 1 - r``."""
    padded = max(micro_batches, 2 * ranks)
    return keep_micro_batches(tuple(_Rank(rank, ranks).order(padded) for rank in range(ranks)), micro_batches)


class _Rank:
    """Writes one rank's order; each call takes the next micro-batch of its stage."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.down, self.up = rank, 2 * ranks - 1 - rank
        self.actions: list[Action] = []
        self.forwards = {self.down: 0, self.up: 0}
        self.backwards = {self.down: 0, self.up: 0}
        self.later: deque[Action] = deque()

    def order(self, micro_batches: int) -> Order:
        down, up, turn, below = self.down, self.up, self.rank + 1, self.ranks - self.rank - 1
        for _ in range(2 * below):
            self.forward(down)
        for _ in range(turn):
            self.forward(down)
            self.forward(up)
        for _ in range(below):
            self.backward_input(up)
            self.weight()
            self.forward(up)
        for _ in range(micro_batches - 2 * self.ranks + turn):
            self.forward(down)
            self.backward(up)
            self.forward(up)
            self.backward(down)
        for _ in range(below):
            self.backward(up)
            self.forward(up)
            self.backward(down)
        for index in range(2 * turn):
            run = self.backward if index < turn else self.backward_input
            run(up if index % 2 == 0 else down)
        for _ in range(below):
            self.weight()
            self.backward_input(down)
        return (*self.actions, *self.later)

    def forward(self, stage: int) -> None:
        self.actions.append(Action(stage, ActionKind.FORWARD, self.forwards[stage]))
        self.forwards[stage] += 1

    def backward(self, stage: int) -> None:
        self.actions.append(Action(stage, ActionKind.BACKWARD, self.backwards[stage]))
        self.backwards[stage] += 1

    def backward_input(self, stage: int) -> None:
        m = self.backwards[stage]
        self.actions.append(Action(stage, ActionKind.BACKWARD_INPUT, m))
        self.later.append(Action(stage, ActionKind.BACKWARD_WEIGHT, m))
        self.backwards[stage] += 1

    def weight(self) -> None:
        self.actions.append(self.later.popleft())
