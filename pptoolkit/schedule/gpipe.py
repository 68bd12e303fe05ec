"""GPipe action order: every forward, then every backward. Pure: no tensors, no processes, no clock.

Three ranks, three micro-batches (B as long as F):

    rank 0   F0 F1 F2 .. .. .. .. B0 B1 B2
    rank 1   .. F0 F1 F2 .. .. B0 B1 B2
    rank 2   .. .. F0 F1 F2 B0 B1 B2

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019. Backwards run
in the order of the forwards, so that the last stage's first gradient leaves while its second is computed.
"""

from pptoolkit.schedule.actions import Action, ActionKind, Order


def gpipe_orders(ranks: int, micro_batches: int) -> tuple[Order, ...]:
    """Return the order of each rank; stage *r* lives on rank *r*, and holds every micro-batch at once."""
    return tuple(
        tuple(Action(stage, kind, m) for kind in (ActionKind.FORWARD, ActionKind.BACKWARD) for m in range(micro_batches))
        for stage in range(ranks)
    )
