"""What if: a run's measured step under other cuts, another schedule, more micro-batches, slower links, a slower rank. Pure; simulates.

Micro-batches keep their size, because what is measured holds for that size: more of them make a larger batch, so a step is compared by its
time per micro-batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import pandas as pd

from dashboard.simulated import mean_passes
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.schedule import TRAINING_SCHEDULES, Schedule, build_schedule
from pptoolkit.simulator import Costs, MemoryCosts, SimulatedStep, simulate
from pptoolkit.simulator.costs import equal_costs

PARTS = ("compute", "schedule", "imbalance", "links", "step edges")
_OPTIMIZER_COPIES = 3  # gradients and two moments beside the parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What differs from the measured run.

    Args:
        link_factor: How many times longer messages are under way.
        slow_rank: Pipeline rank whose compute takes ``slow_factor`` times as long; None: none.
    """

    cuts: tuple[int, ...]
    schedule: str
    micro_batches: int
    link_factor: float = 1.0
    slow_rank: int | None = None
    slow_factor: float = 1.0


def own_scenario(measured: MeasuredStep) -> Scenario:
    """Return the scenario in which nothing differs."""
    plan = measured.plan
    return Scenario(cuts=plan.cuts, schedule=plan.schedule, micro_batches=plan.micro_batches)


def fitting_schedules(ranks: int, layers: int, micro_batches: int) -> dict[str, int]:
    """Return the schedules that can train on so many ranks, and with how many stages each: as few as it needs."""
    found = {}
    for name in TRAINING_SCHEDULES:
        try:
            stages = build_schedule(name, ranks=ranks, micro_batches=micro_batches).stages
        except PPToolkitError:
            continue
        if stages <= layers:
            found[name] = stages
    return found


def best_cuts(measured: MeasuredStep, stages: int) -> tuple[int, ...]:
    """Return the run's own cuts where they make so many stages, else those that balance the measured layers."""
    own = measured.plan.cuts
    return own if len(own) + 1 == stages else minimax_cuts(measured.layers.compute_s, stages)


def simulate_scenario(measured: MeasuredStep, scenario: Scenario) -> SimulatedStep:
    """Return the simulated step.

    Raises:
        PPToolkitError: If the cuts do not fit the model, or the schedule not the ranks.
    """
    schedule, costs = _prepared(measured, scenario)
    return simulate(schedule, costs, memory=memory_costs(measured, scenario.cuts))


def memory_costs(measured: MeasuredStep, cuts: tuple[int, ...]) -> MemoryCosts:
    """Return the bytes of each stage under ``cuts``, as far as the layers' sizes are known."""
    layers = measured.layers.layers
    stages = [layers[a:b] for a, b in pairwise((0, *cuts, len(layers)))]
    return MemoryCosts(
        activation_bytes={stage: sum(layer.activation_bytes for layer in own) for stage, own in enumerate(stages)},
        static_bytes={stage: (1 + _OPTIMIZER_COPIES) * sum(layer.parameter_bytes for layer in own) for stage, own in enumerate(stages)},
    )


def step_parts(measured: MeasuredStep, scenario: Scenario) -> Mapping[str, float]:
    """Return what a simulated step consists of, in seconds: each of :data:`PARTS` is what the step gains in length by it.

    compute: evenly spread over the ranks; schedule: what its order leaves idle with equal stages; imbalance: of the stages; links: messages
    and the host's work around them; step edges: data before, collectives and optimizer after. They sum to the simulated step time.
    """
    schedule, costs = _prepared(measured, scenario)
    whole = simulate(schedule, costs)
    bare = replace(costs, transfer_s={}, send_s=0.0, recv_s=0.0, action_overhead_s=0.0, before_s={}, after_s={}, joined_end=True)
    uneven = simulate(schedule, bare)
    compute_s = sum(uneven.compute_s) / schedule.ranks
    even_s = compute_s / (1 - simulate(schedule, _equalised(costs, schedule)).bubble_ratio)
    linked = simulate(schedule, replace(costs, before_s={}, after_s={}, joined_end=True)).step_time_s
    levels = (0.0, compute_s, even_s, uneven.step_time_s, linked, whole.step_time_s)
    return dict(zip(PARTS, (after - before for before, after in pairwise(levels)), strict=True))


def scenario_rows(measured: MeasuredStep, steps: Mapping[str, tuple[Scenario, SimulatedStep]]) -> pd.DataFrame:
    """Return one row a simulated step: what was asked, and what came of it; the measured step of the run above them."""
    own = own_scenario(measured)
    rows = [{**_asked("measured", own), "step_time_ms": 1e3 * measured.step_time.median}]
    for name, (scenario, step) in steps.items():
        rows.append(
            {
                **_asked(name, scenario),
                "step_time_ms": 1e3 * step.step_time_s,
                "bubble_ratio": step.bubble_ratio,
                "memory_peak_bytes": max(step.memory_high_water_bytes, default=0) or None,
            }
        )
    table = pd.DataFrame(rows)
    table.insert(len(_asked("", own)), "ms_per_micro_batch", table["step_time_ms"] / table["micro_batches"])
    return table


def _asked(name: str, scenario: Scenario) -> dict[str, object]:
    return {
        "step": name,
        "schedule": scenario.schedule,
        "cuts": " ".join(map(str, scenario.cuts)),
        "micro_batches": scenario.micro_batches,
        "link_factor": scenario.link_factor,
        "slow_rank": scenario.slow_rank,
        "slow_factor": scenario.slow_factor if scenario.slow_rank is not None else 1.0,
    }


def _equalised(costs: Costs, schedule: Schedule) -> Costs:
    forward_s, backward_s = mean_passes(costs, schedule.stages)
    return equal_costs(schedule.stages, forward_s=forward_s, backward_input_s=backward_s / 2, backward_weight_s=backward_s / 2)


def _prepared(measured: MeasuredStep, scenario: Scenario) -> tuple[Schedule, Costs]:
    plan = measured.plan.evolve(cuts=scenario.cuts, schedule=scenario.schedule, micro_batches=scenario.micro_batches)
    plan.check(len(measured.layers.layers))
    once = build_schedule(scenario.schedule, ranks=measured.ranks, micro_batches=scenario.micro_batches, stages=plan.stages)
    schedule = measured.run_in_a_step(once)
    costs = measured.costs_under(plan, schedule)
    slow = set(schedule.stages_of(scenario.slow_rank)) if scenario.slow_rank is not None else set()
    op_s = {(stage, kind): s * (scenario.slow_factor if stage in slow else 1.0) for (stage, kind), s in costs.op_s.items()}
    transfer_s = {border: s * scenario.link_factor for border, s in costs.transfer_s.items()}
    return schedule, replace(costs, op_s=op_s, transfer_s=transfer_s)
