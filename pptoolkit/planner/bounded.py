"""Cut under two limits at once: as even in time as the memory of every stage allows. Pure.

A stage that fits with some layers fits with fewer, so filling stages from the left as far as both limits go reaches furthest; a bisection
over the time limit then finds the fairest cut.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

_BISECTIONS = 60


def bounded_cuts(costs: Sequence[float], stages: int, fits: Callable[[int, int, int], bool]) -> tuple[int, ...] | None:
    """Return the fairest cuts whose every stage fits, or None if there are none.

    Args:
        costs: Cost of each layer, not negative.
        stages: Stages, each with at least one layer.
        fits: Called with (stage, first layer, layer after the last): whether the stage can hold these; true for fewer where for more.
    """
    sums = [0.0, *accumulate(costs)]

    def fill(limit: float) -> tuple[int, ...] | None:
        edges = [0]
        for stage in range(stages):
            end, start, last = edges[-1] + 1, edges[-1], len(costs) - (stages - 1 - stage)
            if sums[end] - sums[start] > limit or not fits(stage, start, end):
                return None
            while end < last and sums[end + 1] - sums[start] <= limit and fits(stage, start, end + 1):
                end += 1
            edges.append(end)
        return tuple(edges[1:-1]) if edges[-1] == len(costs) else None

    best = fill(sums[-1] * (1 + 1e-9))
    if best is None:
        return None
    low, high = max(costs), sums[-1]
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        found = fill(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best
