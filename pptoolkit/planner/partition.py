"""Cut a list of layer costs into consecutive stages. Pure and exact: costs in, cut points out.

The exact partition minimises the cost of the most expensive stage (the chains-on-chains problem). It bisects the bottleneck value
and asks a greedy probe whether that value is enough; after every answer the bound moves to a value that some run of layers really
has, so the search ends on the optimum itself instead of near it. Costs are turned into whole numbers of one common power of two
first, so that no sum rounds.
Source: A. Pinar, C. Aykanat, "Fast optimal load balancing algorithms for 1D partitioning", J. Parallel Distrib. Comput. 64 (2004),
the exact bisection.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from pptoolkit.errors import PlanError, counted

_TIE_BREAK_WORK = 1_000_000  # stage costs looked at; a fraction of a second


def minimax_cuts(costs: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the cuts whose most expensive stage is as cheap as can be; every stage gets at least one layer.

    Among equally good cuts the one with the smallest sum of squared stage costs wins. For lists so large that this would take long
    (hundreds of stages of heavily tied costs), the cuts nearest to an even split among the optimal ones win instead.

    Args:
        costs: Cost of each layer, finite and not negative; any unit.
        stages: Number of stages, 1 to ``len(costs)``.

    Raises:
        PlanError: If the stages do not fit the layers, or a cost is negative or not finite.
    """
    check_stages(len(costs), stages)
    sums = _prefix_sums(costs)
    bottleneck = _bottleneck(sums, stages)
    windows = _cut_windows(sums, stages, bottleneck)
    work = sum((hi - lo + 1) * (prev_hi - prev_lo + 1) for (prev_lo, prev_hi), (lo, hi) in pairwise(windows))
    if work > _TIE_BREAK_WORK:
        return _even_cuts(sums, windows, bottleneck)
    return _smallest_squares(sums, windows, bottleneck)


def stage_costs(costs: Sequence[float], cuts: Sequence[int]) -> tuple[float, ...]:
    """Return the summed cost of each stage that ``cuts`` make."""
    edges = (0, *cuts, len(costs))
    return tuple(math.fsum(costs[a:b]) for a, b in pairwise(edges))


def check_stages(layers: int, stages: int) -> None:
    """Refuse a number of stages that would leave one empty.

    Raises:
        PlanError: Naming both numbers.
    """
    if not 1 <= stages <= layers:
        raise PlanError(
            f"{stages} stages do not fit a model of {counted(layers, 'layer')}; use {'1 stage' if layers == 1 else f'1 to {layers} stages'}"
        )


def _prefix_sums(costs: Sequence[float]) -> list[int]:
    for layer, cost in enumerate(costs):
        if not math.isfinite(cost) or cost < 0:
            raise PlanError(f"the cost of layer {layer} is {cost}, and a cost must be finite and not negative; measure the layer again")
    ratios = [float(cost).as_integer_ratio() for cost in costs]
    unit = max((denominator for _, denominator in ratios), default=1)  # denominators are powers of two: the largest holds all
    return [0, *accumulate(numerator * (unit // denominator) for numerator, denominator in ratios)]


def _bottleneck(sums: list[int], stages: int) -> int:
    """Return the smallest possible cost of the most expensive stage, in the unit of ``sums``."""
    largest = max(b - a for a, b in pairwise(sums))
    low = max(largest, -(-sums[-1] // stages))
    high = sums[-1]
    while low < high:
        middle = (low + high) // 2
        fits, bound = _probe(sums, stages, middle)
        if fits:
            high = bound
        else:
            low = bound
    return high


def _probe(sums: list[int], stages: int, limit: int) -> tuple[bool, int]:
    """Fill stages from the left up to ``limit``.

    Returns (True, largest stage made), or (False, the smallest limit above this one that would fill any stage further).
    """
    layers, start, worst, next_limit = len(sums) - 1, 0, 0, sums[-1]
    for _ in range(stages):
        end = bisect_right(sums, sums[start] + limit, start + 1) - 1
        worst = max(worst, sums[end] - sums[start])
        if end == layers:
            return True, worst
        next_limit = min(next_limit, sums[end + 1] - sums[start])
        start = end
    return False, next_limit


def _cut_windows(sums: list[int], stages: int, limit: int) -> list[tuple[int, int]]:
    """Return, for the cut before each stage (and the two ends), the first and last place from which ``limit`` can be kept."""
    layers = len(sums) - 1
    latest = [0]
    for stage in range(1, stages):
        end = bisect_right(sums, sums[latest[-1]] + limit, latest[-1] + 1) - 1
        latest.append(min(end, layers - (stages - stage)))
    earliest = [layers]
    falling = [-s for s in reversed(sums)]  # the same search from the right
    for stage in range(stages - 1, 0, -1):
        place = layers - earliest[-1]
        start = layers - (bisect_right(falling, falling[place] + limit, place + 1) - 1)
        earliest.append(max(start, stage))
    return [(0, 0), *zip(reversed(earliest[1:]), latest[1:], strict=True), (layers, layers)]


def _even_cuts(sums: list[int], windows: list[tuple[int, int]], limit: int) -> tuple[int, ...]:
    """Return optimal cuts, each as near to its share of the total as the limit lets it."""
    stages, cuts = len(windows) - 1, [0]
    for stage in range(1, stages):
        low, high = windows[stage]
        low = max(low, cuts[-1] + 1)
        high = min(high, bisect_right(sums, sums[cuts[-1]] + limit, cuts[-1] + 1) - 1)
        target = sums[-1] * stage // stages
        above = min(max(bisect_right(sums, target, low, high + 1), low), high)
        below = max(above - 1, low)
        cuts.append(below if target - sums[below] <= sums[above] - target else above)
    return tuple(cuts[1:])


def _smallest_squares(sums: list[int], windows: list[tuple[int, int]], limit: int) -> tuple[int, ...]:
    """Return the optimal cuts with the smallest sum of squared stage costs, by dynamic programming over the places each cut may take."""
    scale = max(limit, 1)  # whole numbers divide exactly into a float, however large they are
    best = np.zeros(1)
    choices: list[np.ndarray[tuple[int], np.dtype[np.intp]]] = []
    for (prev_low, prev_high), (low, high) in pairwise(windows):
        starts = range(prev_low, prev_high + 1)
        loads = [[_share(sums[j] - sums[i], limit, scale) if i < j else math.inf for i in starts] for j in range(low, high + 1)]
        totals = best[None, :] + np.array(loads) ** 2
        choices.append(totals.argmin(axis=1))
        best = totals.min(axis=1)
    assert np.isfinite(best[0]), "the windows come from the bottleneck, so some cut keeps it"
    place, cuts = 0, []
    for stage in range(len(windows) - 1, 1, -1):
        place = int(choices[stage - 1][place])
        cuts.append(windows[stage - 1][0] + place)
    return tuple(reversed(cuts))


def _share(load: int, limit: int, scale: int) -> float:
    return load / scale if load <= limit else math.inf
