"""The joint search: cuts, schedule, stages against replicas, micro-batches and recompute, by simulation, under a memory limit per rank.

Every combination of schedule, replicas, stages and micro-batches gets the fairest cut that fits the memory; where none fits, stages
recompute. What no simulation of a combination can fall below (its busiest rank's compute) orders the combinations and ends the search
early, and the simulated actions bound it: the same question always gets the same answer, in a few seconds.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pptoolkit.errors import PPToolkitError, ScheduleError
from pptoolkit.plan import Plan
from pptoolkit.planner.binding import what_binds
from pptoolkit.planner.bounded import bounded_cuts
from pptoolkit.planner.neighbours import neighbours
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.planner.predict import PredictedStep, Predictor
from pptoolkit.schedule import TRAINING_SCHEDULES, build_schedule, check_trains

# GPipe and looped BFS take as long as their 1F1B kin and hold more; DualPipeV is drawn for ranks that work on two micro-batches at once.
DEFAULT_SCHEDULES = tuple(name for name in TRAINING_SCHEDULES if name not in ("gpipe", "looped-bfs", "dualpipev"))
_ACTIONS = 3_000_000  # simulated actions that a search may spend: a few seconds
_KEPT = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """What may change.

    Args:
        schedules: Names of schedules to try.
        micro_batches: Numbers of micro-batches to try; empty: the run's own, and, where the batch is known, half and twice as many.
        replicas: Numbers of replicas to try; empty: the run's own.
        rounds: Stages a rank of the schedules that run several.
        recompute: Whether stages may recompute their activations.
        memory_limit_bytes: Of each rank; None: no limit.
    """

    schedules: tuple[str, ...] = DEFAULT_SCHEDULES
    micro_batches: tuple[int, ...] = ()
    replicas: tuple[int, ...] = ()
    rounds: tuple[int, ...] = (1, 2)
    recompute: bool = True
    memory_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in self.schedules:
            check_trains(name)
            if name.endswith(".csv"):  # it is made for one number of micro-batches and stages, so there is nothing to search
                raise ScheduleError(f"a search cannot vary the schedule {name}; try it as it is: pptoolkit simulate --schedule {name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPlan:
    """A plan with its prediction and what keeps it from being faster, in a sentence."""

    step: PredictedStep
    binding: str

    def to_dict(self) -> dict[str, Any]:
        step = self.step
        return {
            "plan": step.plan.to_dict(),
            "step_time_s": step.step_time_s,
            "low_s": step.low_s,
            "high_s": step.high_s,
            "gain_ratio": step.gain_ratio,
            "bubble_ratio": step.bubble_ratio,
            "memory_bytes": list(step.memory_bytes),
            "binding": self.binding,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Plans, fastest first.

    Args:
        items: Empty if none fits the memory limit.
        tried: Simulated plans.
        smallest_memory_bytes: The least memory a rank that any combination needs; set where nothing fits.
    """

    items: tuple[FoundPlan, ...]
    tried: int
    smallest_memory_bytes: int | None


def search_plans(predictor: Predictor, space: SearchSpace) -> SearchResult:
    """Return the fastest plans of a space.

    Args:
        predictor: Made with ``resize=True`` where micro-batches or replicas may change.
        space: What may change.
    """
    return _Search(predictor, space).run()


class _Search:
    def __init__(self, predictor: Predictor, space: SearchSpace) -> None:
        self.predictor, self.space = predictor, space
        self.measured = predictor.measured
        self.layers = len(self.measured.layers.layers)
        self.spent = 0
        self.found: dict[Plan, float] = {}  # plan -> simulated step, not corrected
        self.looked_at: set[Plan] = set()
        self.placements: dict[tuple[str, int, int], tuple[int, ...] | None] = {}
        self.least: int | None = None  # memory of the most frugal plan that did not fit
        self.memory_excluded = False

    def run(self) -> SearchResult:
        bounded = sorted((self._least_s(plan), place, plan) for place, plan in enumerate(self._combinations()))
        for least_s, _, plan in bounded:
            if self._is_hopeless(least_s) or (self.spent > _ACTIONS and self.found):
                continue
            chosen = self._fitted(plan)
            if chosen is not None:
                self._try(chosen)
        self._improve()
        kinds: dict[tuple[object, ...], Plan] = {}
        for plan in sorted(self.found, key=self._rank):  # of plans that differ by a shifted cut only, the best
            kinds.setdefault((plan.schedule, plan.stages, plan.micro_batches, plan.replicas, bool(plan.recompute)), plan)
        ranked = [self.predictor.predict(plan) for plan in list(kinds.values())[:_KEPT]]
        return SearchResult(
            items=tuple(
                FoundPlan(
                    step=step,
                    binding=what_binds(
                        self.predictor, step, memory_limit_bytes=self.space.memory_limit_bytes, memory_excluded=self.memory_excluded
                    ),
                )
                for step in ranked
            ),
            tried=len(self.found),
            smallest_memory_bytes=None if ranked else self.least,
        )

    def _combinations(self) -> Iterator[Plan]:
        """Yield a plan with the fairest cut for each combination that the ranks, the layers and the batch allow."""
        own, batch = self.measured.plan, self.measured.batch_samples
        total = self.measured.ranks * own.replicas
        sizes = self.space.micro_batches or ((own.micro_batches, own.micro_batches * 2, own.micro_batches // 2) if batch else ())
        for replicas in self.space.replicas or (own.replicas,):
            if total % replicas:
                continue
            for micro_batches in dict.fromkeys(m for m in (*sizes, own.micro_batches) if m > 0):
                if batch and batch % (replicas * micro_batches * self.measured.passes):
                    continue
                for schedule in dict.fromkeys((*self.space.schedules, own.schedule)):
                    for rounds in self.space.rounds:
                        stages = total // replicas * rounds
                        plan = own.evolve(schedule=schedule, micro_batches=micro_batches, replicas=replicas, cuts=(), recompute=())
                        if stages <= self.layers and (fitting := self._cut(plan, stages)) is not None:
                            yield fitting

    def _cut(self, plan: Plan, stages: int) -> Plan | None:
        times = [f + b for f, b in self.measured.layer_times(plan)]
        if self._placement(plan.schedule, stages, plan.replicas) is None:
            return None
        return plan.evolve(cuts=minimax_cuts(times, stages))

    def _placement(self, schedule: str, stages: int, replicas: int) -> tuple[int, ...] | None:
        """Return the rank of each stage, or None where the schedule does not run so many stages on these ranks."""
        key = (schedule, stages, replicas)
        if key not in self.placements:
            ranks = self.measured.ranks * self.measured.plan.replicas // replicas
            try:
                self.placements[key] = build_schedule(schedule, ranks=ranks, stages=stages, micro_batches=1).stage_to_rank
            except PPToolkitError:
                self.placements[key] = None
        return self.placements[key]

    def _least_s(self, plan: Plan) -> float:
        """Return what no simulation of the plan can fall below: the compute of its busiest rank. Needs no schedule."""
        times = [f + b for f, b in self.measured.layer_times(plan)]
        placement = self._placement(plan.schedule, plan.stages, plan.replicas)
        assert placement is not None, "only plans that have a placement come here"
        busy = [0.0] * (max(placement) + 1)
        for rank, layers in zip(placement, plan.stage_layers(self.layers), strict=True):
            busy[rank] += math.fsum(times[i] for i in layers)
        return max(busy) * self.measured.micro_batches_in_a_step(plan) * self.measured.mean_over_median

    def _rank(self, plan: Plan) -> tuple[float, tuple[int, ...], str]:
        return self.found[plan], plan.cuts, plan.schedule

    def _is_hopeless(self, least_s: float) -> bool:
        if len(self.found) < _KEPT:
            return False
        return least_s > sorted(self.found.values())[_KEPT - 1]

    def _try(self, plan: Plan) -> None:
        if plan not in self.found:
            self.spent += sum(len(order) for order in self.predictor.schedule(plan).orders)
            self.found[plan] = self.predictor.simulate(plan).step_time_s

    # -- memory --------------------------------------------------------------------------------------------------------

    def _fitted(self, plan: Plan) -> Plan | None:
        """Return the plan, or the least changed one with the same schedule that fits the memory limit; None if none does."""
        limit = self.space.memory_limit_bytes
        if limit is None or max(self._memory(plan), default=0) <= limit:
            return plan
        self.memory_excluded = True
        for candidate in self._frugal(plan, limit):
            held = max(self._memory(candidate))
            if held <= limit:
                return candidate
            self.least = held if self.least is None else min(self.least, held)
        return None

    def _frugal(self, plan: Plan, limit: int) -> Iterator[Plan]:
        """Yield plans that need less: other cuts, recompute where it is needed, then everywhere, then cuts as even in memory as can be."""
        stages = plan.stages
        moved = self._bounded(plan, limit, ())
        if moved is not None:
            yield moved
        if not self.space.recompute:
            yield from self._even_memory(plan, ())
            return
        again: tuple[int, ...] = ()
        schedule = self.predictor.schedule(plan)
        for _ in range(stages):
            over = [rank for rank, held in enumerate(self._memory(plan.evolve(recompute=again))) if held > limit]
            more = [
                max(s for s in schedule.stages_of(rank) if s not in again) for rank in over if set(schedule.stages_of(rank)) - set(again)
            ]
            if not more:
                break
            again = tuple(sorted({*again, *more}))
        yield plan.evolve(recompute=again)
        every = tuple(range(stages))
        moved = self._bounded(plan, limit, every)
        if moved is not None:
            yield moved
        yield from self._even_memory(plan, every)

    def _bounded(self, plan: Plan, limit: int, recompute: tuple[int, ...]) -> Plan | None:
        """Return the fairest cut within the limit, for schedules with one stage a rank, whose stages do not share their memory."""
        schedule = self.predictor.schedule(plan)
        if schedule.stages != schedule.ranks:
            return None
        in_flight = [self.predictor.in_flight(plan).of_stage(stage) for stage in range(schedule.stages)]
        room = limit - max(self.predictor.with_process((0,) * schedule.ranks), default=0)
        sums = self._byte_sums(plan)

        def fits(stage: int, start: int, end: int) -> bool:
            static, held = (row[end] - row[start] for row in sums[:2])
            if recompute:
                border = sums[2][max(start - 1, 0)]
                return bool(static + held + in_flight[stage] * border <= room)
            return bool(static + in_flight[stage] * held <= room)

        cuts = bounded_cuts([f + b for f, b in self.measured.layer_times(plan)], plan.stages, fits)
        return plan.evolve(cuts=cuts, recompute=recompute) if cuts is not None else None

    def _even_memory(self, plan: Plan, recompute: tuple[int, ...]) -> Iterator[Plan]:
        static, held, _ = self._byte_sums(plan)
        bytes_ = [float(a1 - a0 + h1 - h0) for a0, a1, h0, h1 in zip(static, static[1:], held, held[1:], strict=False)]
        yield plan.evolve(cuts=minimax_cuts(bytes_, plan.stages), recompute=recompute)

    def _byte_sums(self, plan: Plan) -> tuple[list[float], list[float], list[float]]:
        """Return prefix sums of static and of activation bytes of the layers, and the bytes that each hands on."""
        ratio, state = self.measured.size_ratio(plan), 1 + self.measured.state_bytes_ratio
        static, held = [0.0], [0.0]
        for layer in self.measured.layers.layers:
            static.append(static[-1] + state * layer.parameter_bytes)
            held.append(held[-1] + ratio * layer.activation_bytes)
        return static, held, [ratio * layer.boundary_bytes for layer in self.measured.layers.layers]

    def _memory(self, plan: Plan) -> tuple[int, ...]:
        kind = plan.evolve(cuts=tuple(range(1, plan.stages)), recompute=())
        if kind not in self.looked_at:  # to make a schedule costs about as much as to simulate it
            self.looked_at.add(kind)
            self.spent += 2 * self._forwards(plan)
        return self.predictor.memory(plan)

    @staticmethod
    def _forwards(plan: Plan) -> int:
        """Return the forwards of a step, all stages together."""
        return plan.stages * plan.micro_batches

    # -- better cuts -----------------------------------------------------------------------------------------------------

    def _improve(self) -> None:
        """Shift single cuts of the fastest plan as long as that gains and the budget lasts."""
        while self.found:
            best = min(self.found, key=self._rank)
            for cuts in neighbours(best.cuts, self.layers):
                plan = best.evolve(cuts=cuts)
                if self.spent > _ACTIONS or plan in self.found or self._least_s(plan) >= self.found[best]:
                    continue
                limit = self.space.memory_limit_bytes
                if limit is None or max(self._memory(plan), default=0) <= limit:
                    self._try(plan)
            if min(self.found, key=self._rank) == best:
                return
