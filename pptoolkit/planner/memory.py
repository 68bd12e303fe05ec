"""What a plan keeps in memory on each rank: parameters, gradients, optimizer state, and activations of micro-batches in flight.

    rank = static bytes of its stages + for each stage: activations of a micro-batch x micro-batches in flight

A stage that recomputes keeps only its input for each micro-batch in flight, and the activations of the one it is working on.
"""

from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.plan import Plan
from pptoolkit.schedule import ActionKind, Order, Schedule
from pptoolkit.simulator import MemoryCosts

STATE_PER_PARAMETER_BYTE = 3.0  # a gradient and Adam's two moments, each as large as the parameter


def stage_memory(layers: LayerCosts, plan: Plan, *, size_ratio: float = 1.0, state_bytes_ratio: float) -> MemoryCosts | None:
    """Return the bytes of each stage under a plan; None where nothing is known of the layers' sizes.

    Args:
        layers: With ``activation_bytes`` and ``boundary_bytes`` of one micro-batch of the run that they were measured in.
        plan: Its cuts and recompute count.
        size_ratio: Samples of a micro-batch of the plan over those of that run.
        state_bytes_ratio: Bytes of gradients and optimizer state to a byte of parameters.
    """
    rows = layers.layers
    if not any(layer.activation_bytes or layer.parameter_bytes for layer in rows):
        return None
    activations, static = {}, {}
    for stage, mine in enumerate(plan.stage_layers(len(rows))):
        held = size_ratio * sum(rows[i].activation_bytes for i in mine)
        static_bytes = (1 + state_bytes_ratio) * sum(rows[i].parameter_bytes for i in mine)
        if stage in plan.recompute:
            before = rows[mine.start - 1].boundary_bytes if mine.start else rows[mine.start].boundary_bytes
            activations[stage], static[stage] = round(size_ratio * before), round(static_bytes + held)
        else:
            activations[stage], static[stage] = round(held), round(static_bytes)
    return MemoryCosts(activation_bytes=activations, static_bytes=static)


def rank_memory(schedule: Schedule, memory: MemoryCosts) -> tuple[int, ...]:
    """Return each rank's peak of what its stages hold, in bytes."""
    return InFlight(schedule).peaks(memory)


class InFlight:
    """Which micro-batches a schedule holds at once, apart from how large they are: made once, asked for many cuts."""

    def __init__(self, schedule: Schedule) -> None:
        self._stages = [schedule.stages_of(rank) for rank in range(schedule.ranks)]
        self._most = [_fullest(order, own) for order, own in zip(schedule.orders, self._stages, strict=True)]

    def of_stage(self, stage: int) -> int:
        """Return how many micro-batches a stage holds at its peak."""
        rank = next(r for r, own in enumerate(self._stages) if stage in own)
        return max(counts[self._stages[rank].index(stage)] for counts in self._most[rank])

    def peaks(self, memory: MemoryCosts) -> tuple[int, ...]:
        """Return each rank's peak in bytes."""
        found = []
        for own, most in zip(self._stages, self._most, strict=True):
            held = [memory.activation_bytes.get(stage, 0) for stage in own]
            peak = max(sum(n * size for n, size in zip(counts, held, strict=True)) for counts in most)
            found.append(peak + sum(memory.static_bytes.get(stage, 0) for stage in own))
        return tuple(found)


def _fullest(order: Order, own: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the numbers of micro-batches in flight in a rank's stages at the moments that no other moment exceeds in all of them."""
    place = {stage: i for i, stage in enumerate(own)}
    counts, seen = [0] * len(own), {(0,) * len(own)}
    for action in order:
        if action.kind is ActionKind.FORWARD:
            counts[place[action.stage]] += 1
            seen.add(tuple(counts))
        elif action.kind is not ActionKind.BACKWARD_INPUT:
            counts[place[action.stage]] -= 1
    fullest: list[tuple[int, ...]] = []
    for moment in sorted(seen, key=sum, reverse=True):  # what exceeds another one comes before it
        if not any(all(a <= b for a, b in zip(moment, other, strict=True)) for other in fullest):
            fullest.append(moment)
    return fullest
