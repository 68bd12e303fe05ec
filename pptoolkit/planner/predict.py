"""Predict the step time of a plan from a run: simulate it with the run's measured costs, and check the simulation on the run itself.

The run's own plan is replayed first. By how much the replay misses the measured step is the error of the method on this very run:
predictions are corrected by that ratio, it widens their interval, and past :data:`MAX_REPLAY_ERROR` none is made.

The interval adds four independent parts in quadrature:
  layers   what is unsure about the layers that change stage, times the micro-batches (a stage's sum is known, how it is shared is not)
  steps    the spread of single steps: another run's conditions differ from this one's about as one step's do from another's
  replay   the replay error, because the correction may not carry over in full
  model    ``MeasuredStep.model_error`` of the prediction: what a simulation misses even when the replay fits

The gain over the run's own plan is known better than the step time itself. Both plans are simulated with the same costs, so a
machine that is slow today is slow for both, and a replay that misses by some share misses both by about that share. The interval
of the gain therefore leaves the spread of the steps out, and takes the replay error only of the gain.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from pptoolkit.errors import PlanError, counted
from pptoolkit.plan import Plan, Prediction
from pptoolkit.planner.memory import InFlight
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.schedule import Schedule, build_schedule
from pptoolkit.simulator import Program, SimulatedStep, simulate

MAX_REPLAY_ERROR = 0.10
_UNKNOWN_FIXED_SHARE = 0.5  # as much of a layer's time as may not depend on the size of a micro-batch, where nobody measured it


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """A plan's predicted step.

    Args:
        step_time_s: Expected median step time, with ``low_s`` and ``high_s`` around it.
        gain_ratio: 1 - predicted step time over that of the run's own plan, with ``gain_low_ratio`` and ``gain_high_ratio`` around it.
        bubble_ratio: Predicted bubble ratio of the pipeline.
        stage_compute_s: Median forward plus backward of one micro-batch, per stage.
        rank_compute_s: Mean compute of a step, per pipeline rank.
        memory_bytes: Predicted peak of each pipeline rank; empty where the run does not tell what its layers hold.
    """

    plan: Plan
    step_time_s: float
    low_s: float
    high_s: float
    gain_ratio: float
    gain_low_ratio: float
    gain_high_ratio: float
    bubble_ratio: float
    stage_compute_s: tuple[float, ...]
    rank_compute_s: tuple[float, ...]
    memory_bytes: tuple[int, ...] = ()

    def as_prediction(self, *, baseline_step_time_s: float) -> Prediction:
        """Return what a plan file keeps of it, beside the measured step time of the run it came from."""
        return Prediction(
            step_time_s=self.step_time_s,
            low_s=self.low_s,
            high_s=self.high_s,
            bubble_ratio=self.bubble_ratio,
            baseline_step_time_s=baseline_step_time_s,
        )


class Predictor:
    """Predicts plans from one measured run; keeps what the simulations share.

    Args:
        measured: The run's step.
        resize: Predict other sizes of micro-batches too. Where the measurement does not tell the fixed part of a layer's time, it is
            taken to be between none and half of it, and the interval says so.

    Raises:
        PlanError: If this release cannot build the run's schedule.
    """

    def __init__(self, measured: MeasuredStep, *, resize: bool = False) -> None:
        self.measured, self._resize = measured, resize
        self._schedules: dict[tuple[str, int, int, int], Schedule] = {}
        self._programs: dict[tuple[str, int, int, int], Program] = {}
        self._in_flight: dict[tuple[str, int, int, int], InFlight] = {}
        self._layers = len(measured.layers.layers)
        self._program(measured.plan)

    @cached_property
    def replay_s(self) -> float:
        """Simulated step time of the run's own plan."""
        return self.simulate(self.measured.plan).step_time_s

    @property
    def replay_error_ratio(self) -> float:
        """Replayed over measured step time, less 1: positive when the simulation is too slow."""
        return self.replay_s / self.measured.step_time.median - 1.0

    @property
    def doubt(self) -> str:
        """Why nothing can be predicted from this run, with the remedy; empty if the replay is good enough."""
        error = self.replay_error_ratio
        if abs(error) <= MAX_REPLAY_ERROR:
            return ""
        replay, measured = self.replay_s * 1e3, self.measured.step_time.median * 1e3
        return (
            f"the replay of this run takes {replay:.1f} ms and its measured step {measured:.1f} ms ({error:+.0%}); "
            f"past {MAX_REPLAY_ERROR:.0%} nothing is predicted, so measure again on machines that do less else"
        )

    def simulate(self, plan: Plan) -> SimulatedStep:
        """Return the simulated step of a plan with the run's costs, not corrected.

        Raises:
            PlanError: If the plan does not fit the model, the ranks, or the run's micro-batches.
        """
        plan.check(self._layers)
        measured = self.measured.plan.micro_batches
        if plan.micro_batches != measured and not self._resize:
            raise PlanError(
                f"micro_batches={plan.micro_batches} differs from the {measured} of the measured run, whose layer costs hold for "
                f"its size of micro-batch only; predict with micro_batches={measured}"
            )
        program = self._program(plan)
        return simulate(program, self.measured.costs_under(plan, program.schedule))

    def predict(self, plan: Plan) -> PredictedStep:
        """Return the predicted step of a plan.

        Raises:
            PlanError: As :meth:`simulate`, and if the replay of the run misses its measured step by more than :data:`MAX_REPLAY_ERROR`.
        """
        if self.doubt:
            raise PlanError(self.doubt)
        step = self.simulate(plan)
        correction = 1.0 / (1.0 + self.replay_error_ratio)
        step_time_s = step.step_time_s * correction
        half = self._half_width_s(plan, step_time_s)
        gain = 1.0 - step.step_time_s / self.replay_s
        half_gain = self._gain_half_width(plan, step_time_s, gain)
        layer_s = [f + b for f, b in self.measured.layer_times(plan)]
        shift = self._size_doubt_s(plan, step.step_time_s) * correction
        return PredictedStep(
            plan=plan,
            step_time_s=step_time_s,
            low_s=step_time_s - half + min(shift, 0.0),
            high_s=step_time_s + half + max(shift, 0.0),
            gain_ratio=gain,
            gain_low_ratio=gain - half_gain - max(shift, 0.0) / self.measured.step_time.median,
            gain_high_ratio=gain + half_gain - min(shift, 0.0) / self.measured.step_time.median,
            bubble_ratio=max(0.0, 1.0 - sum(step.compute_s) / (len(step.compute_s) * step_time_s)),
            stage_compute_s=tuple(math.fsum(layer_s[i] for i in layers) for layers in plan.stage_layers(self._layers)),
            rank_compute_s=step.compute_s,
            memory_bytes=self.memory(plan),
        )

    def with_process(self, held: tuple[int, ...]) -> tuple[int, ...]:
        """Return each rank's memory with what its process needs beside the layers, as measured; empty where that is not known."""
        other = self.measured.other_bytes
        usual = round(sum(other) / len(other)) if other else 0
        return tuple(bytes_ + (other[rank] if len(other) == len(held) else usual) for rank, bytes_ in enumerate(held))

    def least_step_s(self, plan: Plan) -> float:
        """Return a step time that no simulation of the plan can fall below: the compute of its busiest rank."""
        layer_s, schedule = [f + b for f, b in self.measured.layer_times(plan)], self.schedule(plan)
        ranks, busy = schedule.stage_to_rank, [0.0] * schedule.ranks
        for stage, layers in enumerate(plan.stage_layers(self._layers)):
            busy[ranks[stage]] += math.fsum(layer_s[i] for i in layers)
        return max(busy) * self.measured.micro_batches_in_a_step(plan) * self.measured.mean_over_median

    @property
    def actions(self) -> int:
        """Compute actions of a step of the run's own plan: the size of one simulation."""
        return len(self._program(self.measured.plan).actions)

    def memory(self, plan: Plan) -> tuple[int, ...]:
        """Return the predicted peak memory of each rank; empty where the run does not tell what its layers hold."""
        memory = self.measured.memory_under(plan)
        return self.with_process(self.in_flight(plan).peaks(memory)) if memory is not None else ()

    def in_flight(self, plan: Plan) -> InFlight:
        """Return which micro-batches a plan's schedule holds at once."""
        key = self._key(plan)
        if key not in self._in_flight:
            self._in_flight[key] = InFlight(self.schedule(plan))
        return self._in_flight[key]

    def schedule(self, plan: Plan) -> Schedule:
        """Return what a step of a plan runs on the run's ranks: its schedule, as many times as the run passes through it."""
        key = self._key(plan)
        if key not in self._schedules:
            total = self.measured.ranks * self.measured.plan.replicas
            if total % plan.replicas:
                raise PlanError(f"replicas={plan.replicas} do not divide the {counted(total, 'rank')} of the run; use a divisor of {total}")
            once = build_schedule(plan.schedule, ranks=total // plan.replicas, micro_batches=plan.micro_batches, stages=plan.stages)
            self._schedules[key] = self.measured.run_in_a_step(once)
        return self._schedules[key]

    @staticmethod
    def _key(plan: Plan) -> tuple[str, int, int, int]:
        return plan.schedule, plan.stages, plan.micro_batches, plan.replicas

    def _program(self, plan: Plan) -> Program:
        key = self._key(plan)
        if key not in self._programs:
            self._programs[key] = Program(self.schedule(plan))
        return self._programs[key]

    def _size_doubt_s(self, plan: Plan, simulated_s: float) -> float:
        """Return by how much the simulated step changes where a large part of each layer's time is the same for any micro-batch."""
        if self.measured.size_ratio(plan) == 1.0 or self.measured.fixed_shares is not None:
            return 0.0
        shares = ((_UNKNOWN_FIXED_SHARE,) * 2,) * self._layers
        costs = replace(self.measured, fixed_shares=shares).costs_under(plan, self.schedule(plan))
        return simulate(self._program(plan), costs).step_time_s - simulated_s

    def _half_width_s(self, plan: Plan, step_time_s: float) -> float:
        replay_s, model_s = abs(self.replay_error_ratio) * step_time_s, self.measured.model_error * step_time_s
        return math.hypot(self._moved_half_width_s(plan), self.measured.step_sigma_s, replay_s, model_s)

    def _gain_half_width(self, plan: Plan, step_time_s: float, gain: float) -> float:
        if self._is_own(plan):
            return 0.0
        base_s = self.measured.step_time.median
        return math.hypot(
            self._moved_half_width_s(plan) / base_s, self.replay_error_ratio * gain, self.measured.model_error * step_time_s / base_s
        )

    def _is_own(self, plan: Plan) -> bool:
        """Whether the run did just this, so that there is nothing to be unsure about."""
        own = self.measured.plan
        return (plan.cuts, plan.schedule, plan.micro_batches, plan.replicas, plan.recompute) == (
            own.cuts,
            own.schedule,
            own.micro_batches,
            own.replicas,
            own.recompute,
        )

    def _moved_half_width_s(self, plan: Plan) -> float:
        """Return the uncertainty of a step from the layers that change stage."""
        old, new = self.measured.plan.stage_layers(self._layers), plan.stage_layers(self._layers)
        moved = [set(after) ^ (set(old[stage]) if stage < len(old) else set()) for stage, after in enumerate(new)]
        return self.measured.micro_batches_in_a_step(plan) * max(
            self.measured.layers.stage_half_width_s(sorted(changed)) for changed in moved
        )
