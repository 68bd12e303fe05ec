"""Simulated steps: from a schedule and its costs to step time, bubble, waits and memory. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from pptoolkit.schedule import Action, Schedule
from pptoolkit.simulator.costs import Costs, MemoryCosts, equal_costs
from pptoolkit.simulator.program import Durations, Program, Timeline, high_water_bytes

_MOST_STEPS = 12  # until the steps of ranks that run ahead repeat; a cycle this long is averaged


class SimulatedOp(NamedTuple):
    """One compute action of one rank; seconds from the start of the simulation."""

    rank: int
    action: Action
    start_s: float
    end_s: float


@dataclass(frozen=True)
class SimulatedStep:
    """One step of all ranks.

    Args:
        step_time_s: Seconds from one step's end to the next one's, as steps follow each other.
        program: What ran.
        costs: What it cost.
        durations: The same, per action.
        timeline: When everything happened.
        memory_high_water_bytes: Peak bytes per rank; empty without memory costs.
    """

    step_time_s: float
    program: Program
    costs: Costs
    durations: Durations
    timeline: Timeline
    memory_high_water_bytes: tuple[int, ...]

    @cached_property
    def compute_s(self) -> tuple[float, ...]:
        """Seconds that each rank computes."""
        busy = [0.0] * self.program.schedule.ranks
        for rank, op_s in zip(self.program.ranks, self.durations.op_s, strict=True):
            busy[rank] += op_s
        return tuple(busy)

    @cached_property
    def wait_s(self) -> tuple[float, ...]:
        """Seconds that each rank, free and ready, waits for a message."""
        waits = [0.0] * self.program.schedule.ranks
        line, program = self.timeline, self.program
        for rank, need, ready in zip(program.ranks, program.needs, line.ready_s, strict=True):
            if need >= 0 and line.arrival_s[need] > ready:
                waits[rank] += line.arrival_s[need] - ready
        return tuple(waits)

    @property
    def join_wait_s(self) -> tuple[float, ...]:
        """Seconds that each rank waits for the others at the end of the step."""
        return tuple(end - arrived for end, arrived in zip(self.timeline.rank_end_s, self.timeline.rank_arrived_s, strict=True))

    @property
    def bubble_ratio(self) -> float:
        """Share of the ranks' time in which nothing is computed, in [0, 1]."""
        capacity = self.program.schedule.ranks * self.step_time_s
        return max(0.0, 1.0 - sum(self.compute_s) / capacity) if capacity > 0 else 0.0

    @cached_property
    def in_flight(self) -> tuple[int, ...]:
        """Most micro-batches that each stage holds activations of."""
        return tuple(self.program.schedule.in_flight(stage) for stage in range(self.program.schedule.stages))

    @cached_property
    def ops(self) -> list[SimulatedOp]:
        """The compute actions, each rank's in its own order, rank by rank."""
        line = self.timeline
        found: list[list[SimulatedOp]] = [[] for _ in range(self.program.schedule.ranks)]
        for rank, action, start, end in zip(self.program.ranks, self.program.actions, line.start_s, line.end_s, strict=True):
            found[rank].append(SimulatedOp(rank, action, start, end))
        return [op for rank_ops in found for op in rank_ops]


def simulate(schedule: Schedule | Program, costs: Costs, *, memory: MemoryCosts | None = None) -> SimulatedStep:
    """Simulate the step that repeats when steps follow each other without a pause.

    With a joined end that is one step from a common start. Where ranks run ahead, steps are simulated until they repeat.

    Args:
        schedule: The schedule, or a :class:`Program` of it, which saves time when many costs are tried.
        costs: Times of its parts.
        memory: Bytes per stage, for the high-water marks.

    Raises:
        ScheduleError: If the schedule would deadlock.
        InputError: If the costs lack a time.
    """
    program = schedule if isinstance(schedule, Program) else Program(schedule)
    durations = program.durations(costs)
    links = [0.0] * len(program.links)
    lines = [program.play(durations, costs, [0.0] * program.schedule.ranks, links)]
    if costs.joined_end:
        return SimulatedStep(max(lines[0].rank_end_s), program, costs, durations, lines[0], _high_water(program.schedule, memory))
    before = list(links)
    for _ in range(_MOST_STEPS):
        lines.append(program.play(durations, costs, lines[-1].rank_end_s, links))
        if _repeats(lines[-1], before, links):
            break
        before = list(links)
    last = lines[-1]
    if _is_even(_shifts(last)):
        step_time_s = _shifts(last)[0]
    else:  # a cycle of several steps: its mean over the later half, when the start is forgotten
        half = len(lines) // 2
        step_time_s = (max(last.rank_end_s) - max(lines[half].rank_end_s)) / (len(lines) - 1 - half)
    return SimulatedStep(step_time_s, program, costs, durations, last, _high_water(program.schedule, memory))


def simulate_steps(schedule: Schedule | Program, costs: Iterable[Costs], *, memory: MemoryCosts | None = None) -> list[SimulatedStep]:
    """Simulate steps that follow each other, each with its own costs, on one time axis from 0.

    Raises:
        ScheduleError: If the schedule would deadlock.
        InputError: If the costs lack a time.
    """
    program = schedule if isinstance(schedule, Program) else Program(schedule)
    high_water = _high_water(program.schedule, memory)
    links = [0.0] * len(program.links)
    starts = [0.0] * program.schedule.ranks
    steps: list[SimulatedStep] = []
    known: tuple[Costs, Durations] | None = None
    for each in costs:
        durations = known[1] if known is not None and known[0] is each else program.durations(each)
        known = (each, durations)
        line = program.play(durations, each, starts, links)
        steps.append(SimulatedStep(max(line.rank_end_s) - max(starts), program, each, durations, line, high_water))
        starts = line.rank_end_s
    return steps


def schedule_bubble_ratio(schedule: Schedule | Program, *, backward_to_forward: float = 2.0) -> float:
    """Return the bubble ratio that a schedule has by itself: equal stages, free links, a step that all ranks end together.

    Args:
        schedule: Any schedule.
        backward_to_forward: How many times longer B is than F; I and W take half of B each.
    """
    program = schedule if isinstance(schedule, Program) else Program(schedule)
    part_s = backward_to_forward / 2
    return simulate(program, equal_costs(program.schedule.stages, backward_input_s=part_s, backward_weight_s=part_s)).bubble_ratio


def _shifts(line: Timeline) -> list[float]:
    return [end - start for start, end in zip(line.rank_start_s, line.rank_end_s, strict=True)]


def _is_even(shifts: list[float]) -> bool:
    return max(shifts) - min(shifts) <= 1e-9 * max(shifts)


def _repeats(line: Timeline, links_before: list[float], links_after: list[float]) -> bool:
    """Whether the next step must be this one again, later: every rank and every link stands where it stood, shifted by the same time."""
    return _is_even(_shifts(line) + [after - before for before, after in zip(links_before, links_after, strict=True)])


def _high_water(schedule: Schedule, memory: MemoryCosts | None) -> tuple[int, ...]:
    if memory is None:
        return ()
    stages = range(schedule.stages)
    return high_water_bytes(schedule, [memory.activation_bytes.get(s, 0) for s in stages], [memory.static_bytes.get(s, 0) for s in stages])
