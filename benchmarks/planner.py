"""The joint search on a large job: 96 layers on 64 ranks with 512 micro-batches, with and without a memory limit, on one core."""

import random
import sys
import time
from dataclasses import replace

from benchmarks.paired import Estimate
from benchmarks.report import argument_parser, at_most, describe_machine, show, tell
from pptoolkit.analysis.layer_costs import LayerCost, LayerCosts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.search import SearchSpace, search_plans
from pptoolkit.planner.step_costs import MeasuredStep, RankSides

_LAYERS, _RANKS, _MICRO_BATCHES = 96, 64, 512
_GOAL_S = 10.0
_MIB = 1 << 20


def main() -> int:
    """Run the benchmark and return the exit code."""
    options = argument_parser(__doc__ or "").parse_args()
    tell(describe_machine())
    measured = large_job(options.seed)
    rounds = 2 if options.quick else 5
    results = []
    for name, space in (
        ("no limit", SearchSpace()),
        ("a limit that recompute alone can keep", SearchSpace(memory_limit_bytes=1200 * _MIB)),
        ("replicas too", SearchSpace(replicas=(1, 2, 4))),
    ):
        seconds = []
        for _ in range(rounds):
            began = time.process_time()
            found = search_plans(Predictor(measured, resize=True), space)
            seconds.append(time.process_time() - began)
        tell(f"{name}: {found.tried} plans simulated, best {found.items[0].step.plan.schedule if found.items else 'none'}")
        ordered = sorted(seconds)
        results.append(
            at_most(f"plan, {name}", Estimate(value=ordered[len(ordered) // 2], low=ordered[0], high=ordered[-1]), "s", goal=_GOAL_S)
        )
    show(results, as_json=options.json)
    return 0 if all(result.holds is not False for result in results) else 1


def large_job(seed: int) -> MeasuredStep:
    """Return a job whose layers differ by a fifth."""
    draw = random.Random(seed)

    def exactly(value: float) -> Interval:
        return Interval(median=value, low=value, high=value, samples=20)

    layers = []
    for i in range(_LAYERS):
        forward_s = 0.01 * draw.uniform(0.8, 1.2)
        layers.append(
            LayerCost(
                layer=i,
                name=f"block{i}",
                forward=exactly(forward_s),
                backward=exactly(2 * forward_s),
                parameter_bytes=100 * _MIB,
                activation_bytes=50 * _MIB,
                boundary_bytes=_MIB,
            )
        )
    measured = MeasuredStep(
        plan=Plan(cuts=equal_layer_cuts(_LAYERS, _RANKS), micro_batches=_MICRO_BATCHES),
        step_time=exactly(1.0),
        step_sigma_s=0.0,
        layers=LayerCosts(layers=tuple(layers)),
        mean_over_median=1.0,
        backward_input_share=0.5,
        sides=(RankSides(before_s=0.0, after_s=0.0, optimizer_s=0.01),) * _RANKS,
        transfer_s={},
        send_s=0.0,
        action_overhead_s=0.0,
        joined_end=True,
        batch_samples=4 * _MICRO_BATCHES,
    )
    return replace(measured, step_time=exactly(Predictor(measured).replay_s))


if __name__ == "__main__":
    sys.exit(main())
