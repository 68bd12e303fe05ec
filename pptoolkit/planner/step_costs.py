"""What a step of a run is made of, measured, and what it would be made of under another plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.plan import Plan
from pptoolkit.planner.memory import STATE_PER_PARAMETER_BYTE, stage_memory
from pptoolkit.schedule import ActionKind, Schedule
from pptoolkit.simulator import Costs, MemoryCosts

MODEL_ERROR = 0.015


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSides:
    """What a pipeline rank does before its first and after its last action of a step, in seconds of its own time.

    Args:
        before_s: Data, host, and the collectives' own part.
        after_s: Host, and the collectives' own part; not the optimizer.
        optimizer_s: The optimizer.
    """

    before_s: float
    after_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """Everything the planner knows about a run's step.

    Args:
        plan: The plan that ran.
        step_time: Measured step time.
        step_sigma_s: Spread of single steps around it, robust.
        layers: Calibrated layer costs.
        mean_over_median: How much longer ops take on average than in the median; layer costs are medians, and a step is a sum.
        backward_input_share: Part of the backward that I takes where a schedule runs I and W apart, in stages that need an input gradient.
        sides: Per pipeline rank.
        transfer_s: Seconds a message travels, by (source stage, destination stage).
        send_s: Host time of handing over one message.
        action_overhead_s: Host time around one compute action.
        joined_end: Whether the ranks wait for each other at the end of a step.
        batch_samples: Samples of a step over all replicas; 0 where they are not known.
        fixed_shares: For each layer, the parts of its forward and backward that do not depend on the size of a micro-batch, in [0, 1];
            None: not known, and taken as 0.
        model_error: Share of a prediction that a simulation is taken to miss even when the replay fits.
        state_bytes_ratio: Bytes of gradients and optimizer state to a byte of parameters.
        other_bytes: Per pipeline rank, measured peak memory less what the layers explain: the process itself.
        bandwidth: Bytes per second of a link; 0 where it is not known.
        is_profile: Measured layer by layer in one process: there is no run behind it, and ``step_time`` is simulated.
        passes: Passes through the schedule in a step, one after the other: more than one under gradient accumulation.
        input_shares: The part that I takes by stage of the run, where it ran I and W apart.
    """

    plan: Plan
    step_time: Interval
    step_sigma_s: float
    layers: LayerCosts
    mean_over_median: float
    backward_input_share: float
    sides: tuple[RankSides, ...]
    transfer_s: Mapping[tuple[int, int], float]
    send_s: float
    action_overhead_s: float
    joined_end: bool
    batch_samples: int = 0
    fixed_shares: tuple[tuple[float, float], ...] | None = None
    model_error: float = MODEL_ERROR
    state_bytes_ratio: float = STATE_PER_PARAMETER_BYTE
    other_bytes: tuple[int, ...] = ()
    bandwidth: float = 0.0
    is_profile: bool = False
    passes: int = 1
    input_shares: Mapping[int, float] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.sides)

    def costs_under(self, plan: Plan, schedule: Schedule) -> Costs:
        """Return the simulator's costs of a step under ``plan``.

        The optimizer follows the parameters: a rank's own time, plus what the run took per byte for what the rank gains or loses.
        A border's transfer follows the bytes that cross it. A layer's time follows the samples of a micro-batch, but for its fixed part. A
        stage that recomputes runs its forward again before its backward. Replicas that the run did not have add a ring all-reduce of
        the gradients, 2 (r - 1) / r times their bytes over the bandwidth (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce
        algorithms for clusters of workstations", J. Parallel Distrib. Comput. 69, 2009).
        """
        ranges = plan.stage_layers(len(self.layers.layers))
        times = self.layer_times(plan)
        op_s = {}
        for stage, layers in enumerate(ranges):
            forward = self.mean_over_median * sum(times[i][0] for i in layers)
            backward = self.mean_over_median * sum(times[i][1] for i in layers)
            again = forward if stage in plan.recompute else 0.0
            again -= forward if stage in self.plan.recompute and plan.cuts == self.plan.cuts else 0.0  # measured with it
            op_s[stage, ActionKind.FORWARD] = forward
            op_s[stage, ActionKind.BACKWARD] = max(0.0, backward + again)
            share = self._input_share(plan, stage)
            op_s[stage, ActionKind.BACKWARD_INPUT] = max(0.0, backward * share + again)
            op_s[stage, ActionKind.BACKWARD_WEIGHT] = backward * (1 - share)
        sides = self._sides_under(schedule)
        optimizer_s = self._optimizer_under(ranges, schedule, sides)
        reduce_s = self._reduce_under(plan, ranges, schedule)
        return Costs(
            op_s=op_s,
            transfer_s=self._transfers_under(ranges, self.size_ratio(plan)),
            send_s=self.send_s,
            action_overhead_s=self.action_overhead_s,
            before_s={rank: side.before_s for rank, side in enumerate(sides)},
            after_s={rank: side.after_s + optimizer_s[rank] + reduce_s[rank] for rank, side in enumerate(sides)},
            joined_end=self.joined_end,
        )

    def run_in_a_step(self, schedule: Schedule) -> Schedule:
        """Return all that a step runs of ``schedule``: each pass of it."""
        return schedule.repeated(self.passes)

    def micro_batches_in_a_step(self, plan: Plan) -> int:
        """Return how many micro-batches of ``plan`` a stage takes in a step, over all passes."""
        return plan.micro_batches * self.passes

    def _input_share(self, plan: Plan, stage: int) -> float:
        """Return the part of a stage's backward that runs in I, as the engine splits it."""
        if stage in plan.recompute:
            return 1.0  # it is not split
        if plan.cuts == self.plan.cuts and stage in self.input_shares and stage not in self.plan.recompute:
            return self.input_shares[stage]
        return self.backward_input_share if stage else 0.0  # nobody waits for the first stage's, and all of it runs in W

    def size_ratio(self, plan: Plan) -> float:
        """Return the samples of a micro-batch under ``plan`` over those of the run's own."""
        return self.plan.micro_batches * self.plan.replicas / (plan.micro_batches * plan.replicas)

    def layer_times(self, plan: Plan) -> list[tuple[float, float]]:
        """Return forward and backward seconds of each layer for a micro-batch of ``plan``."""
        ratio = self.size_ratio(plan)
        shares = self.fixed_shares or ((0.0, 0.0),) * len(self.layers.layers)
        return [
            (layer.forward.median * (f + (1 - f) * ratio), layer.backward.median * (b + (1 - b) * ratio))
            for layer, (f, b) in zip(self.layers.layers, shares, strict=True)
        ]

    def memory_under(self, plan: Plan) -> MemoryCosts | None:
        """Return bytes per stage under ``plan``; None where the run does not tell what its layers hold."""
        return stage_memory(self.layers, plan, size_ratio=self.size_ratio(plan), state_bytes_ratio=self.state_bytes_ratio)

    def _sides_under(self, schedule: Schedule) -> tuple[RankSides, ...]:
        """Return what each rank does around its actions; with another number of ranks, what they did on average."""
        if schedule.ranks == len(self.sides):
            return self.sides
        count = len(self.sides)
        mean = RankSides(
            before_s=sum(side.before_s for side in self.sides) / count,
            after_s=sum(side.after_s for side in self.sides) / count,
            optimizer_s=0.0,  # follows the bytes alone
        )
        return (mean,) * schedule.ranks

    def _reduce_under(self, plan: Plan, ranges: Sequence[range], schedule: Schedule) -> list[float]:
        if plan.replicas <= self.plan.replicas or not self.bandwidth:
            return [0.0] * schedule.ranks
        sizes = [layer.parameter_bytes for layer in self.layers.layers]
        factor = 2 * (plan.replicas - 1) / plan.replicas / self.bandwidth
        return [factor * sum(sizes[i] for stage in schedule.stages_of(rank) for i in ranges[stage]) for rank in range(schedule.ranks)]

    def _optimizer_under(self, ranges: Sequence[range], schedule: Schedule, sides: Sequence[RankSides]) -> list[float]:
        sizes = [layer.parameter_bytes for layer in self.layers.layers]
        per_byte = sum(side.optimizer_s for side in self.sides) / sum(sizes) if sum(sizes) else 0.0
        old_ranges = self.plan.stage_layers(len(sizes))
        same_ranks = schedule.ranks == len(self.sides)
        seconds = []
        for rank, side in enumerate(sides):
            new = sum(sizes[i] for stage in schedule.stages_of(rank) for i in ranges[stage])
            # The run's own placement has as many stages; under another number of stages only the bytes per rank count.
            old = sum(sizes[i] for stage in schedule.stages_of(rank) if same_ranks and stage < len(old_ranges) for i in old_ranges[stage])
            seconds.append(max(0.0, side.optimizer_s + per_byte * (new - old)))
        return seconds

    def _transfers_under(self, ranges: Sequence[range], size_ratio: float) -> dict[tuple[int, int], float]:
        """Return the transfer over each border; over one that the run did not have, what the run's borders take on average."""
        sizes = [layer.boundary_bytes for layer in self.layers.layers]
        old_ranges = self.plan.stage_layers(len(sizes))
        measured = [s for s in self.transfer_s.values() if s > 0]
        usual_s = sum(measured) / len(measured) if measured else 0.0
        crossing = [sizes[old.stop - 1] for old in old_ranges[:-1]]
        usual_bytes = sum(crossing) / len(crossing) if crossing else 0
        transfers = {}
        for border, new in enumerate(ranges[:-1]):
            known = border < len(crossing)
            before, after = (crossing[border] if known else usual_bytes), sizes[new.stop - 1]
            factor = size_ratio * (after / before if before and after else 1.0)
            for key in ((border, border + 1), (border + 1, border)):
                transfers[key] = (self.transfer_s.get(key, 0.0) if known else usual_s) * factor
        return transfers
