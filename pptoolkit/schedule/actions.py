"""The words of a schedule: what a rank does, for which stage and micro-batch. Pure data.

An order is written as one would draw it: ``"F0 F1 B0"`` for a rank with one stage, ``"0F0 2F0"`` (stage first)
where a rank holds several.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from pptoolkit.errors import ScheduleError


class ActionKind(Enum):
    """What an action does; the values are the letters of the field's diagrams."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_ACTIVATION = "SEND_F"
    RECV_ACTIVATION = "RECV_F"
    SEND_GRADIENT = "SEND_B"
    RECV_GRADIENT = "RECV_B"

    @property
    def is_compute(self) -> bool:
        return self in _COMPUTE


_COMPUTE = frozenset({ActionKind.FORWARD, ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT})
_PATTERN = re.compile(r"(\d*)(SEND_F|RECV_F|SEND_B|RECV_B|F|B|I|W)(\d+)")


@dataclass(frozen=True, slots=True, order=False)
class Action:
    """One thing a rank does: ``Action(2, ActionKind.FORWARD, 0)`` is the forward of micro-batch 0 in stage 2."""

    stage: int
    kind: ActionKind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.micro_batch}"

    @classmethod
    def parse(cls, text: str, *, stage: int | None = None) -> "Action":
        """Read ``"2F0"``, or ``"F0"`` where ``stage`` says which stage is meant.

        Raises:
            ScheduleError: If the text is no action, or names no stage and ``stage`` is None.
        """
        match = _PATTERN.fullmatch(text.strip())
        if match is None or (not match[1] and stage is None):
            raise ScheduleError(f"{text!r} is not an action; write stage, kind and micro-batch, e.g. 2F0 or 0B3")
        return cls(int(match[1]) if match[1] else int(stage or 0), ActionKind(match[2]), int(match[3]))


Order = tuple[Action, ...]


def parse_order(text: str, *, stage: int | None = None) -> Order:
    """Read ``"F0 F1 B0 B1"``: the actions of one rank, separated by blanks."""
    return tuple(Action.parse(word, stage=stage) for word in text.split())


def format_order(order: Iterable[Action], *, stages: bool = False) -> str:
    """Write an order as a line; ``stages=False`` leaves the stage out, as diagrams of one stage a rank do."""
    return " ".join(str(a) if stages else f"{a.kind.value}{a.micro_batch}" for a in order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What every pipeline rank computes in one step, in order.

    Args:
        name: The schedule's name as a plan spells it, e.g. ``"1f1b"``.
        micro_batches: Micro-batches per step.
        stage_to_rank: Pipeline rank (0-based, within one replica) of each stage.
        orders: Compute actions (F, B, I, W) of each pipeline rank. Communication is derived by :func:`lower`.
    """

    name: str
    micro_batches: int
    stage_to_rank: tuple[int, ...]
    orders: tuple[Order, ...]

    @property
    def stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def ranks(self) -> int:
        return len(self.orders)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that pipeline rank ``rank`` owns, ascending."""
        return tuple(s for s, r in enumerate(self.stage_to_rank) if r == rank)

    def repeated(self, passes: int) -> "Schedule":
        """Return ``passes`` of this schedule one after the other, as under gradient accumulation; micro-batches count on."""
        if passes == 1:
            return self
        starts = [n * self.micro_batches for n in range(passes)]
        orders = tuple(tuple(Action(a.stage, a.kind, start + a.micro_batch) for start in starts for a in order) for order in self.orders)
        return Schedule(name=self.name, micro_batches=passes * self.micro_batches, stage_to_rank=self.stage_to_rank, orders=orders)

    def in_flight(self, stage: int) -> int:
        """Return how many micro-batches ``stage`` holds activations of at its peak."""
        held = peak = 0
        for action in self.orders[self.stage_to_rank[stage]]:
            if action.stage != stage:
                continue
            if action.kind is ActionKind.FORWARD:
                held += 1
                peak = max(peak, held)
            elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
                held -= 1
        return peak
