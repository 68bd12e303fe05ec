"""Exact partition against the published ways, on lists of layer costs with heavy tails: how often each finds the cheapest bottleneck.

Costs are drawn from a log-normal distribution with sigma 1.5, as a few layers that cost as much as all others together make it. Parameters
are drawn independently of the costs for the way that only knows these. A way is optimal when its most expensive stage is as cheap as the
exact one's; the exact one is held against every cut there is where these are few.
"""

import random
import sys
import time
from collections.abc import Sequence
from itertools import combinations, islice
from math import comb

from benchmarks.paired import Estimate
from benchmarks.report import Result, argument_parser, at_most, describe_machine, show, tell
from pptoolkit.planner.baselines import baseline_cuts
from pptoolkit.planner.partition import minimax_cuts, stage_costs

_LISTS = 200
_ALL_CUTS = 50_000
_SAME = 1 + 1e-9


def main() -> int:
    """Run the benchmark and return the exit code."""
    options = argument_parser(__doc__ or "").parse_args()
    tell(describe_machine())
    draw = random.Random(options.seed)
    cases = [_case(draw) for _ in range(_LISTS)]
    results = [*_optimal(cases), *_speed(draw, quick=options.quick)]
    show(results, as_json=options.json)
    return 0 if all(result.holds is not False for result in results) else 1


def _case(draw: random.Random) -> tuple[list[float], list[float], int]:
    """Return costs, parameters and a number of stages."""
    layers = draw.randint(8, 48)
    costs, parameters = ([draw.lognormvariate(0.0, 1.5) for _ in range(layers)] for _ in range(2))
    return costs, parameters, draw.randint(2, min(8, layers))


def _optimal(cases: Sequence[tuple[list[float], list[float], int]]) -> list[Result]:
    hits: dict[str, int] = {}
    excess: dict[str, list[float]] = {}
    proved = checked = 0
    for costs, parameters, stages in cases:
        best = max(stage_costs(costs, minimax_cuts(costs, stages)))
        if comb(len(costs) - 1, stages - 1) <= _ALL_CUTS:
            checked += 1
            proved += best <= min(max(stage_costs(costs, cuts)) for cuts in combinations(range(1, len(costs)), stages - 1)) * _SAME
        for name, cuts in {"exact (ours)": minimax_cuts(costs, stages), **baseline_cuts(costs, parameters, stages)}.items():
            bottleneck = max(stage_costs(costs, cuts))
            hits[name] = hits.get(name, 0) + (bottleneck <= best * _SAME)
            excess.setdefault(name, []).append(bottleneck / best)
    results = [
        Result(
            name="exact (ours): as good as the best of all cuts, where all can be tried",
            value=proved / checked,
            low=proved / checked,
            high=proved / checked,
            unit=f"of {checked}",
            goal="all",
            holds=proved == checked,
        )
    ]
    for name, count in hits.items():
        low, high = _wilson(count, len(cases))
        ours = name == "exact (ours)"
        results.append(
            Result(
                name=f"{name}: optimal",
                value=count / len(cases),
                low=low,
                high=high,
                unit=f"of {len(cases)}",
                goal="all" if ours else None,
                holds=count == len(cases) if ours else None,
            )
        )
        ordered = sorted(excess[name])
        results.append(
            Result(
                name=f"{name}: bottleneck over the best, median (10 % to 90 %)",
                value=ordered[len(ordered) // 2],
                low=ordered[len(ordered) // 10],
                high=ordered[len(ordered) * 9 // 10],
                unit="x",
            )
        )
    return results


def _speed(draw: random.Random, *, quick: bool) -> list[Result]:
    """10,000 layers into 1,024 stages."""
    costs = [draw.lognormvariate(0.0, 1.5) for _ in range(10_000)]
    seconds = []
    for _ in islice(iter(int, 1), 3 if quick else 9):
        began = time.process_time()
        minimax_cuts(costs, 1024)
        seconds.append(time.process_time() - began)
    ordered = sorted(seconds)
    estimate = Estimate(value=ordered[len(ordered) // 2], low=ordered[0], high=ordered[-1])
    return [at_most("10,000 layers into 1,024 stages, processor time", estimate, "s", goal=1.0)]


def _wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95 % interval of a rate. Source: E. B. Wilson, J. Amer. Statist. Assoc. 22 (1927)."""
    z, rate = 1.959964, hits / count
    middle = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (rate * (1 - rate) / count + z * z / (4 * count * count)) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


if __name__ == "__main__":
    sys.exit(main())
