"""What a plan keeps in memory on each rank: parameters, gradients, optimizer state, and activations of micro-batches in flight.

    rank = static bytes of its stages + for each stage: activations of a micro-batch x micro-batches in flight

A stage that recomputes keeps only its input for each micro-batch in flight, and the activations of the one it is working on.
"""

from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.plan import Plan
from pptoolkit.schedule import Schedule
from pptoolkit.simulator import MemoryCosts
from pptoolkit.simulator.program import high_water_bytes

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
    stages = range(schedule.stages)
    return high_water_bytes(schedule, [memory.activation_bytes.get(s, 0) for s in stages], [memory.static_bytes.get(s, 0) for s in stages])
