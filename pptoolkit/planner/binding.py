"""What keeps a plan from being faster: memory, the bubble, one layer, or the compute itself. One sentence."""

from pptoolkit.planner.predict import PredictedStep, Predictor

_BUBBLE = 0.15
_NEAR_LIMIT = 0.9


def what_binds(predictor: Predictor, step: PredictedStep, *, memory_limit_bytes: int | None = None, memory_excluded: bool = False) -> str:
    """Return the constraint that binds a plan.

    Args:
        predictor: What predicted it.
        step: The plan's predicted step.
        memory_limit_bytes: Of each rank; None: no limit.
        memory_excluded: Whether the limit kept other plans out.
    """
    plan = step.plan
    schedule = predictor.schedule(plan)
    ranges = plan.stage_layers(len(predictor.measured.layers.layers))
    held = max(step.memory_bytes, default=0)
    if memory_limit_bytes is not None and memory_excluded and (plan.recompute or held > _NEAR_LIMIT * memory_limit_bytes):
        rank = step.memory_bytes.index(held)
        return f"memory: rank {rank} holds {held / 2**20:,.0f} of {memory_limit_bytes / 2**20:,.0f} MiB"
    slowest = max(range(plan.stages), key=step.stage_compute_s.__getitem__)
    if len(ranges[slowest]) == 1 and plan.stages > 1:
        return f"one layer: stage {slowest} is layer {ranges[slowest].start} alone, and a layer is never split"
    if step.bubble_ratio > _BUBBLE and plan.micro_batches < 4 * schedule.ranks:
        return f"the bubble: {plan.micro_batches} micro-batches on {schedule.ranks} ranks leave {step.bubble_ratio:.0%} idle"
    rank, pace = schedule.stage_to_rank[slowest], step.stage_compute_s[slowest] * 1e3
    return f"compute: stage {slowest} on rank {rank} sets the pace with {pace:.3g} ms a micro-batch"
