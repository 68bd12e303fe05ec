"""Where stages live: on which pipeline rank each one runs. Pure arithmetic.

looped, 2 ranks, 4 stages:  rank 0: stages 0 2     rank 1: stages 1 3
V,      2 ranks, 4 stages:  rank 0: stages 0 3     rank 1: stages 1 2
"""


def looped_placement(ranks: int, stages: int) -> tuple[int, ...]:
    """Return the rank of each stage when the model goes round the ranks again and again; one round is the plain pipeline."""
    return tuple(stage % ranks for stage in range(stages))


def v_placement(ranks: int) -> tuple[int, ...]:
    """Return the rank of each of ``2 * ranks`` stages when the model goes down the ranks and comes back up.

    The first and the last stage share rank 0, and the turn at the last rank needs no transfer.
    """
    return (*range(ranks), *reversed(range(ranks)))
