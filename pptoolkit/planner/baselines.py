"""How others would cut: the published ways, implemented anew, to stand beside every suggestion. Pure.

uniform           the same number of layers for every stage
by_parameters     DeepSpeed, ``PipelineModule(partition_method="parameters")``: the difference between the largest and the smallest stage's
                  parameters is made small, by dynamic programming over prefixes (deepspeed/runtime/utils.py, ``partition_balanced``)
block_partition   torchgpipe, ``balance_by_time``: I. Barany, V. S. Grinberg, "Block partitions of sequences", Israel J. Math. 206 (2015),
                  on normalised times, from an even start (torchgpipe/balance/blockpartition.py)
weighted_ends     torchtitan, ``generate_llm_fqn_per_model_part``: layer counts, the input and the output module counting as so many layers
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

import numpy as np

from pptoolkit.plan import equal_layer_cuts
from pptoolkit.planner.partition import check_stages, minimax_cuts

_MOST_WORK = 20_000_000  # prefixes times stages times prefixes: some seconds
_MOST_MOVES = 100_000


def by_parameters_cuts(parameters: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the cuts that DeepSpeed's ``parameters`` method would choose.

    For lists so long that its cubic search would take minutes, the exact minimax cut of the parameters stands in for it.

    Raises:
        PlanError: If the stages do not fit the layers.
    """
    layers = len(parameters)
    check_stages(layers, stages)
    if layers * layers * stages > _MOST_WORK:
        return minimax_cuts([float(p) for p in parameters], stages)
    sums = np.concatenate(([0.0], np.cumsum(np.asarray(parameters, dtype=np.float64))))
    largest, smallest = np.full(layers + 1, np.inf), np.full(layers + 1, np.inf)
    largest[0] = 0.0
    choices = []
    for stage in range(1, stages + 1):
        new_largest, new_smallest = np.full(layers + 1, np.inf), np.full(layers + 1, np.inf)
        choice = np.zeros(layers + 1, dtype=np.int64)
        for end in range(stage, layers + 1):
            part = sums[end] - sums[:end]
            high, low = np.maximum(largest[:end], part), np.minimum(smallest[:end], part)
            spread = np.where(np.isinf(largest[:end]), np.inf, high - low)
            best = end - 1 - int(np.argmin(spread[::-1]))  # of equal ones, the last
            new_largest[end], new_smallest[end], choice[end] = high[best], low[best], best
        largest, smallest = new_largest, new_smallest
        choices.append(choice)
    cuts, end = [], layers
    for choice in reversed(choices[1:]):
        end = int(choice[end])
        cuts.append(end)
    return tuple(reversed(cuts))


def block_partition_cuts(times: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the cuts that torchgpipe's ``balance_by_time`` would choose.

    It moves single layers towards the smallest stage until the largest exceeds the smallest by no more than the largest layer.

    Raises:
        PlanError: If the stages do not fit the layers.
    """
    layers = len(times)
    check_stages(layers, stages)
    low, span = min(times), max(times) - min(times)
    sums = [0.0, *accumulate((t - low) / span if span else 0.0 for t in times)]
    edges = [0, *(layers // stages * stage for stage in range(1, stages)), layers]

    def sizes() -> list[float]:
        return [sums[b] - sums[a] for a, b in pairwise(edges)]

    full: int | None = None
    for _ in range(_MOST_MOVES):
        size = sizes()
        if full is None:
            full = max(range(stages), key=lambda s: (size[s], s))
            most = size[full]
        empty = min(range(stages), key=size.__getitem__)
        if most <= size[empty] + 1:
            break
        giver = empty - 1 if full < empty else empty + 1
        if full < empty:
            edges[empty] -= 1
        else:
            edges[empty + 1] += 1
        if giver == full:
            full = None
    return tuple(edges[1:-1])


def weighted_ends_cuts(layers: int, stages: int, *, input_weight: int = 1, output_weight: int = 1) -> tuple[int, ...]:
    """Return the cuts that torchtitan would choose; the first and the last layer are the input and the output module.

    Args:
        layers: Layers with these two.
        stages: Stages.
        input_weight: As how many layers the input module counts; torchtitan's own default is 1, and others are left to the user.
        output_weight: Likewise.

    Raises:
        PlanError: If the stages do not fit the layers.
    """
    check_stages(layers, stages)
    if stages == 1:
        return ()
    share, more = divmod(layers - 2 + input_weight + output_weight, stages)
    wanted = [share + (stage < more) for stage in range(stages)]
    wanted[0] += 1 - input_weight
    wanted[-1] += 1 - output_weight
    return tuple(min(max(end, stage), layers - stages + stage) for stage, end in enumerate(accumulate(wanted[:-1]), start=1))


def baseline_cuts(times: Sequence[float], parameters: Sequence[float], stages: int) -> dict[str, tuple[int, ...]]:
    """Return the cuts of each published way, by name; one that leaves a stage empty or has nothing to go by is left out."""
    ways: dict[str, Callable[[], tuple[int, ...]]] = {"uniform": lambda: equal_layer_cuts(len(times), stages)}
    if any(parameters):
        ways["by_parameters"] = lambda: by_parameters_cuts(parameters, stages)
    ways["block_partition"] = lambda: block_partition_cuts(times, stages)
    ways["weighted_ends"] = lambda: weighted_ends_cuts(len(times), stages)
    found = {name: way() for name, way in ways.items()}
    return {name: cuts for name, cuts in found.items() if all(a < b for a, b in pairwise((0, *cuts, len(times))))}
