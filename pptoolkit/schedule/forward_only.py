"""Forward-only action order, for evaluation and inference. Pure.

Three ranks, two micro-batches:

    rank 0   F0 F1
    rank 1   .. F0 F1
    rank 2   .. .. F0 F1

It follows any placement of stages, so that a model trained under a V or an interleaved placement is evaluated where it lies.
"""

from collections.abc import Sequence

from pptoolkit.schedule.actions import Action, ActionKind, Order, Schedule

FORWARD_ONLY = "forward"


def forward_orders(stage_to_rank: Sequence[int], micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank: its first stage takes every micro-batch, then its next stage does."""
    ranks = max(stage_to_rank) + 1
    return tuple(
        tuple(
            Action(stage, ActionKind.FORWARD, m) for stage, owner in enumerate(stage_to_rank) if owner == rank for m in range(micro_batches)
        )
        for rank in range(ranks)
    )


def forward_schedule(stage_to_rank: Sequence[int], micro_batches: int) -> Schedule:
    """Return the forward-only schedule for a placement, e.g. the ``stage_to_rank`` of the training schedule."""
    return Schedule(
        name=FORWARD_ONLY,
        micro_batches=micro_batches,
        stage_to_rank=tuple(stage_to_rank),
        orders=forward_orders(stage_to_rank, micro_batches),
    )
