"""A schedule made ready for many simulations: flat lists, so that the inner loop touches neither enum nor data class.

The loop's rules are the runtime's. A rank runs its list strictly in sequence. An action starts when the rank is free and its input
has arrived; a message leaves when its producer has ended, and follows the one before it on the same direction of the same border.
Stages on the same rank hand over for free. Receives are posted early, so a message needs no rank to be ready for it.
"""

from dataclasses import dataclass

from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.dependencies import order_actions
from pptoolkit.simulator.costs import Costs


@dataclass(frozen=True, slots=True)
class Timeline:
    """One step of every rank, in seconds on an axis that all steps of a simulation share. Lists by action run parallel to the program."""

    ready_s: list[float]  # the rank came to the action: what follows until its input is there is wait
    start_s: list[float]
    end_s: list[float]
    arrival_s: list[float]  # when the action's output was there for its consumer
    rank_start_s: list[float]
    rank_done_s: list[float]  # after the last action and its sends
    rank_arrived_s: list[float]  # after after_s: the rank joins the others
    rank_end_s: list[float]


@dataclass(frozen=True, slots=True)
class Durations:
    """Costs spread over the actions of a program."""

    op_s: list[float]
    overhead_s: list[float]
    transfer_s: list[float]
    before_s: list[float]
    after_s: list[float]


class Program:
    """A schedule in an order that can run, with the links between ranks numbered.

    Args:
        schedule: Any schedule; an invalid one is refused.

    Raises:
        ScheduleError: If the schedule would deadlock.
    """

    def __init__(self, schedule: Schedule) -> None:
        graph = order_actions(schedule)
        self.schedule = schedule
        self.actions = graph.actions
        self.ranks = graph.ranks
        self.needs = graph.needs
        self.links: dict[tuple[int, int], int] = {}  # (source stage, destination stage) -> link
        self.out_links = [-1] * len(self.actions)  # link that the action's output takes to another rank, or -1
        self.destinations = [-1] * len(self.actions)  # stage that takes the output on another rank, or -1
        for index, need in enumerate(graph.needs):
            if need >= 0 and self.ranks[need] != self.ranks[index]:
                border = (self.actions[need].stage, self.actions[index].stage)
                self.out_links[need] = self.links.setdefault(border, len(self.links))
                self.destinations[need] = border[1]

    def durations(self, costs: Costs) -> Durations:
        """Return every action's own time.

        Raises:
            InputError: If the costs lack a time.
        """
        overrides, own_transfers = costs.overrides, costs.transfer_overrides
        kinds: dict[tuple[int, str], float] = {}
        op_s: list[float] = []
        transfer_s = [0.0] * len(self.actions)
        by_link = [costs.transfer_s.get(border, 0.0) for border in self.links]
        for index, action in enumerate(self.actions):
            own = overrides.get(action) if overrides else None
            if own is None:
                key = (action.stage, action.kind.value)
                if (own := kinds.get(key)) is None:
                    own = kinds[key] = costs.duration_s(action.stage, action.kind)
            op_s.append(own)
            link = self.out_links[index]
            if link >= 0:
                own_transfer = own_transfers.get(action) if own_transfers else None
                transfer_s[index] = by_link[link] if own_transfer is None else own_transfer
        ranks = range(self.schedule.ranks)
        overhead_s = [costs.action_overhead_s] * len(self.actions)
        if costs.overhead_overrides:
            overhead_s = [costs.overhead_overrides.get(action, costs.action_overhead_s) for action in self.actions]
        return Durations(
            op_s, overhead_s, transfer_s, [costs.before_s.get(r, 0.0) for r in ranks], [costs.after_s.get(r, 0.0) for r in ranks]
        )

    def play(self, durations: Durations, costs: Costs, rank_start_s: list[float], link_free_s: list[float]) -> Timeline:
        """Run one step from where each rank stands; ``link_free_s`` is carried from step to step and changed in place."""
        count = len(self.actions)
        ready, start, end, arrival = [0.0] * count, [0.0] * count, [0.0] * count, [0.0] * count
        free = [a + b for a, b in zip(rank_start_s, durations.before_s, strict=True)]
        send, recv = costs.send_s, costs.recv_s
        ranks, out_links = self.ranks, self.out_links
        rows = zip(ranks, self.needs, out_links, durations.op_s, durations.overhead_s, durations.transfer_s, strict=True)
        for index, (rank, need, link, op_s, overhead, transfer_s) in enumerate(rows):
            ready[index] = now = free[rank] + overhead
            if need >= 0:
                if arrival[need] > now:
                    now = arrival[need]
                if out_links[need] >= 0:
                    now += recv
            start[index] = now
            end[index] = now = now + op_s
            if link >= 0:
                now += send
                begin = link_free_s[link]
                arrival[index] = link_free_s[link] = (begin if begin > now else now) + transfer_s
            else:
                arrival[index] = now
            free[rank] = now
        arrived = [a + b for a, b in zip(free, durations.after_s, strict=True)]
        ends = [max(arrived)] * len(arrived) if costs.joined_end else arrived
        return Timeline(ready, start, end, arrival, rank_start_s, free, arrived, ends)


def high_water_bytes(schedule: Schedule, activation_bytes: list[int], static_bytes: list[int]) -> tuple[int, ...]:
    """Return each rank's peak of static bytes plus activations held, over its own order (independent of times)."""
    peaks = []
    for rank, order in enumerate(schedule.orders):
        held = peak = sum(static_bytes[stage] for stage in schedule.stages_of(rank))
        for action in order:
            held += memory_change(action, activation_bytes)
            peak = max(peak, held)
        peaks.append(peak)
    return tuple(peaks)


def memory_change(action: Action, activation_bytes: list[int]) -> int:
    """Return the bytes by which an action changes what its rank holds; W, or a whole B, lets go of the activation."""
    if action.kind is ActionKind.FORWARD:
        return activation_bytes[action.stage]
    return 0 if action.kind is ActionKind.BACKWARD_INPUT else -activation_bytes[action.stage]
