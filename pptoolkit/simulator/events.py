"""Simulated steps as telemetry events, so that a synthetic run is written, read, analysed and drawn like a real one.

STEP       |----------------------------------------------------------|
DATA       |--|                                        before_s
SCHEDULE      |------------------------------------|   recv, compute, send; what they leave uncovered is host time
OPTIMIZER                                          |--|    after_s
REDUCE                                                |---|  until the other ranks have come, where the end is joined
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pptoolkit.schedule import ActionKind
from pptoolkit.simulator.costs import MemoryCosts
from pptoolkit.simulator.program import memory_change
from pptoolkit.simulator.step import SimulatedStep
from pptoolkit.telemetry.events import Event, Op

_OPS = {
    ActionKind.FORWARD: Op.FORWARD,
    ActionKind.BACKWARD: Op.BACKWARD,
    ActionKind.BACKWARD_INPUT: Op.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Op.BACKWARD_WEIGHT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSettings:
    """How simulated steps become events.

    Args:
        first_step: Number of the first step.
        origin_ns: Clock reading at the start of the simulation, nanoseconds.
        clock_offset_ns: What each rank's clock shows more than the simulation's, by rank. Missing: 0.
        message_bytes: Size of a message by (source stage, destination stage). Missing: 0.
        memory: Bytes by stage, for ``memory_bytes`` of compute ops; None: 0, not measured.
    """

    first_step: int = 0
    origin_ns: int = 0
    clock_offset_ns: Mapping[int, int] = field(default_factory=dict)
    message_bytes: Mapping[tuple[int, int], int] = field(default_factory=dict)
    memory: MemoryCosts | None = None


def to_events(steps: Sequence[SimulatedStep], settings: EventSettings | None = None) -> list[list[Event]]:
    """Return the events of each rank, in the order in which a recorder would have written them: by end, a step's own event last.

    Args:
        steps: Consecutive steps on one time axis, from :func:`simulate_steps`; or a single one.
        settings: Numbers of steps, clock, sizes.
    """
    settings = settings or EventSettings()
    if not steps:
        return []
    events: list[list[Event]] = [[] for _ in range(steps[0].program.schedule.ranks)]
    for number, step in enumerate(steps, start=settings.first_step):
        writer = _StepWriter(step, number, settings)
        writer.open(events)
        writer.actions(events)
        writer.close(events)
    return events


class _StepWriter:
    """Turns one step into events. Seconds are rounded to nanoseconds at their place on the axis, so neighbours still meet."""

    def __init__(self, step: SimulatedStep, number: int, settings: EventSettings) -> None:
        self.step, self.number, self.settings = step, number, settings
        self.ranks = range(step.program.schedule.ranks)
        self.zero = [settings.origin_ns + settings.clock_offset_ns.get(rank, 0) for rank in self.ranks]
        line, before_s = step.timeline, step.durations.before_s
        self.begin = [self._ns(r, line.rank_start_s[r]) for r in self.ranks]
        self.first = [self._ns(r, line.rank_start_s[r] + before_s[r]) for r in self.ranks]
        self.done = [self._ns(r, line.rank_done_s[r]) for r in self.ranks]
        self.arrived = [self._ns(r, line.rank_arrived_s[r]) for r in self.ranks]
        self.end = [self._ns(r, line.rank_end_s[r]) for r in self.ranks]

    def _ns(self, rank: int, seconds: float) -> int:
        return self.zero[rank] + round(seconds * 1e9)

    def open(self, events: list[list[Event]]) -> None:
        for rank in self.ranks:
            if self.first[rank] > self.begin[rank]:
                events[rank].append(self._whole(Op.DATA, self.begin[rank], self.first[rank]))
        program = self.step.program
        for index, need in enumerate(program.needs):
            if need >= 0 and program.out_links[need] >= 0:
                events[program.ranks[index]].append(self._message(index, need, Op.RECV_POST))

    def actions(self, events: list[list[Event]]) -> None:
        step, number, program, line = self.step, self.number, self.step.program, self.step.timeline
        memory, held = self._memory()
        send_s = step.costs.send_s
        rows = zip(program.actions, program.ranks, program.needs, program.out_links, line.start_s, line.end_s, strict=True)
        for index, (action, rank, need, link, start_s, end_s) in enumerate(rows):
            out = events[rank]
            if need >= 0 and program.out_links[need] >= 0:
                out.append(self._message(index, need, Op.RECV))
            if memory is not None:
                held[rank] += memory_change(action, memory)
            start, end = self._ns(rank, start_s), self._ns(rank, end_s)
            out.append(Event(number, action.stage, action.micro_batch, _OPS[action.kind], -1, start, end, 0, held[rank], 0))
            if link >= 0:
                peer = program.destinations[index]
                size = self.settings.message_bytes.get((action.stage, peer), 0)
                out.append(Event(number, action.stage, action.micro_batch, Op.SEND, peer, end, self._ns(rank, end_s + send_s), size, 0, 0))

    def close(self, events: list[list[Event]]) -> None:
        for rank in self.ranks:
            out = events[rank]
            out.append(self._whole(Op.SCHEDULE, self.first[rank], self.done[rank]))
            if self.arrived[rank] > self.done[rank]:
                out.append(self._whole(Op.OPTIMIZER, self.done[rank], self.arrived[rank]))
            if self.end[rank] > self.arrived[rank]:
                out.append(self._whole(Op.REDUCE, self.arrived[rank], self.end[rank]))
            out.append(self._whole(Op.STEP, self.begin[rank], self.end[rank]))

    def _whole(self, op: Op, start_ns: int, end_ns: int) -> Event:
        return Event(self.number, -1, -1, op, -1, start_ns, end_ns, 0, 0, 0)

    def _message(self, index: int, need: int, op: Op) -> Event:
        program, line = self.step.program, self.step.timeline
        action, rank, source = program.actions[index], program.ranks[index], program.actions[need].stage
        # Receives are posted before the first action: that is what lets the simulator start a transfer without the receiver.
        start = end = self.first[rank]
        if op is Op.RECV:
            start, end = self._ns(rank, line.ready_s[index]), self._ns(rank, line.start_s[index])
        size = self.settings.message_bytes.get((source, action.stage), 0)
        return Event(self.number, action.stage, action.micro_batch, op, source, start, end, size, 0, 0)

    def _memory(self) -> tuple[list[int] | None, list[int]]:
        schedule, memory = self.step.program.schedule, self.settings.memory
        if memory is None:
            return None, [0] * schedule.ranks
        held = [sum(memory.static_bytes.get(s, 0) for s in schedule.stages_of(r)) for r in self.ranks]
        return [memory.activation_bytes.get(s, 0) for s in range(schedule.stages)], held
