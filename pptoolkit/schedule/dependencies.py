"""What each action waits for, and an order in which a whole schedule can run: the base of validation and simulation. Pure.

    F(s) <- F(s-1)              activation from the stage before
    B(s), I(s) <- B or I(s+1)   gradient from the stage after; and the stage's own F
    W(s) <- I(s)

A rank runs its list strictly in sequence, so the schedule can run if the ranks, each stopping at the first action whose input does not
exist yet, all reach their ends.
"""

from dataclasses import dataclass

from pptoolkit.errors import ScheduleError, counted
from pptoolkit.schedule.actions import Action, ActionKind, Schedule

_FORWARD, _WEIGHT = ActionKind.FORWARD, ActionKind.BACKWARD_WEIGHT


@dataclass(frozen=True, slots=True)
class ActionGraph:
    """A schedule's actions in an order that can run: each comes after what it needs and after its predecessor on its rank.

    Parallel lists. ``needs[i]`` is the index of the action of a neighbouring stage whose output action ``i`` takes, or -1.
    """

    schedule: Schedule
    actions: list[Action]
    ranks: list[int]
    needs: list[int]


def order_actions(schedule: Schedule) -> ActionGraph:
    """Run through a schedule without a clock and return its actions in an order that works.

    Raises:
        ScheduleError: If the ranks come to wait for each other, naming the first action that never starts and what it waits for.
    """
    walk = _Walk(schedule)
    walk.run()
    return ActionGraph(schedule, walk.actions, walk.ranks, walk.needs)


class _Walk:
    """Ranks that advance through their lists until each is done or waits for an output that does not exist."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.width = schedule.micro_batches
        cells = schedule.stages * self.width
        self.forwards = [-1] * cells  # index of the action that made the activation of (stage, micro-batch)
        self.gradients = [-1] * cells  # ... and of the one that made the gradient by the stage's input
        self.positions = [0] * schedule.ranks
        self.actions: list[Action] = []
        self.ranks: list[int] = []
        self.needs: list[int] = []
        self.waiting: dict[tuple[bool, int], int] = {}  # (is a gradient, cell) -> rank that waits for it

    def run(self) -> None:
        ready = list(reversed(range(self.schedule.ranks)))
        while ready:
            self._advance(ready.pop(), ready)
        stuck = [rank for rank, order in enumerate(self.schedule.orders) if self.positions[rank] < len(order)]
        if stuck:
            raise ScheduleError(self._explain(stuck))

    def _advance(self, rank: int, ready: list[int]) -> None:
        order, width, last = self.schedule.orders[rank], self.width, self.schedule.stages - 1
        forwards, gradients, waiting = self.forwards, self.gradients, self.waiting
        position = self.positions[rank]
        while position < len(order):
            action = order[position]
            stage, kind, micro_batch = action.stage, action.kind, action.micro_batch
            if micro_batch >= width or stage > last:
                raise ScheduleError(
                    f"rank {rank}, position {position}: {action} is beyond {counted(last + 1, 'stage')}, "
                    f"{counted(width, 'micro-batch')}; count from 0"
                )
            cell = stage * width + micro_batch
            need = -1
            if kind is _FORWARD:
                if stage and (need := forwards[cell - width]) < 0:
                    waiting[False, cell - width] = rank
                    break
                made, is_gradient = forwards, False
            elif kind is _WEIGHT:
                if gradients[cell] < 0:
                    break
                position += 1
                self._append(action, rank, -1)
                continue
            else:
                if forwards[cell] < 0:
                    break
                if stage < last and (need := gradients[cell + width]) < 0:
                    waiting[True, cell + width] = rank
                    break
                made, is_gradient = gradients, True
            made[cell] = len(self.actions)
            position += 1
            self._append(action, rank, need)
            if waiting and (waiter := waiting.pop((is_gradient, cell), None)) is not None:
                ready.append(waiter)
        self.positions[rank] = position

    def _append(self, action: Action, rank: int, need: int) -> None:
        self.actions.append(action)
        self.ranks.append(rank)
        self.needs.append(need)

    def _explain(self, stuck: list[int]) -> str:
        # The earliest stop is the most useful one to look at: ranks further on only wait behind it.
        rank = min(stuck, key=lambda r: (self.positions[r], r))
        action = self.schedule.orders[rank][self.positions[rank]]
        wanted = self._wanted(action)
        start = f"rank {rank} stops at position {self.positions[rank]}: {action} waits for {wanted}"
        for owner, order in enumerate(self.schedule.orders):
            for position, candidate in enumerate(order):
                if str(candidate) in wanted.split(" or "):
                    if owner == rank:
                        return f"{start}, which the same rank runs only later, at position {position}; move {candidate} before {action}"
                    blocked = order[self.positions[owner]]
                    return (
                        f"{start}, which rank {owner} runs at position {position}, but rank {owner} itself waits at position "
                        f"{self.positions[owner]} ({blocked}): a deadlock; on rank {owner} run {candidate} earlier, or on rank {rank} "
                        f"run {action} later"
                    )
        return f"{start}, which no rank runs; add it to the rank that owns that stage"

    def _wanted(self, action: Action) -> str:
        stage, m = action.stage, action.micro_batch
        if action.kind is _FORWARD:
            return f"{stage - 1}F{m}"
        if action.kind is _WEIGHT:
            return f"{stage}I{m}"
        if self.forwards[stage * self.width + m] < 0:
            return f"{stage}F{m}"
        return f"{stage + 1}B{m} or {stage + 1}I{m}"
