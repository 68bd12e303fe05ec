"""What a step of a run is made of, measured, and what it would be made of under another plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.layer_costs import LayerCosts, mean_over_median
from pptoolkit.analysis.links import LinkMeasure
from pptoolkit.analysis.statistics import Interval, robust_sigma
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.plan import Plan
from pptoolkit.schedule import ActionKind, Schedule
from pptoolkit.simulator import Costs
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.run_info import RunInfo

MIN_LINK_SAMPLES = 5
_PIPELINE = (*COMPUTE_CODES, int(Op.RECV), int(Op.SEND))
_BUSY = (*_PIPELINE, int(Op.SEND_WAIT), int(Op.DATA), int(Op.REDUCE), int(Op.OPTIMIZER), int(Op.CHECKPOINT))


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
        backward_input_share: Part of the backward that I takes where a schedule runs I and W apart.
        sides: Per pipeline rank.
        transfer_s: Seconds a message travels, by (source stage, destination stage).
        send_s: Host time of handing over one message.
        action_overhead_s: Host time around one compute action.
        joined_end: Whether the ranks wait for each other at the end of a step.
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

    @property
    def ranks(self) -> int:
        return len(self.sides)

    def costs_under(self, plan: Plan, schedule: Schedule) -> Costs:
        """Return the simulator's costs of a step under ``plan``.

        The optimizer follows the parameters: a rank's own time, plus what the run took per byte for what the rank gains or loses.
        A border's transfer follows the bytes that cross it.
        """
        ranges = plan.stage_layers(len(self.layers.layers))
        op_s = {}
        for stage, layers in enumerate(ranges):
            forward = self.mean_over_median * sum(self.layers.layers[i].forward.median for i in layers)
            backward = self.mean_over_median * sum(self.layers.layers[i].backward.median for i in layers)
            op_s[stage, ActionKind.FORWARD] = forward
            op_s[stage, ActionKind.BACKWARD] = backward
            op_s[stage, ActionKind.BACKWARD_INPUT] = backward * self.backward_input_share
            op_s[stage, ActionKind.BACKWARD_WEIGHT] = backward * (1 - self.backward_input_share)
        optimizer_s = self._optimizer_under(ranges, schedule)
        return Costs(
            op_s=op_s,
            transfer_s=self._transfers_under(ranges),
            send_s=self.send_s,
            action_overhead_s=self.action_overhead_s,
            before_s={rank: side.before_s for rank, side in enumerate(self.sides)},
            after_s={rank: side.after_s + optimizer_s[rank] for rank, side in enumerate(self.sides)},
            joined_end=self.joined_end,
        )

    def _optimizer_under(self, ranges: Sequence[range], schedule: Schedule) -> list[float]:
        sizes = [layer.parameter_bytes for layer in self.layers.layers]
        per_byte = sum(side.optimizer_s for side in self.sides) / sum(sizes) if sum(sizes) else 0.0
        old_ranges = self.plan.stage_layers(len(sizes))
        seconds = []
        for rank, side in enumerate(self.sides):
            new = sum(sizes[i] for stage in schedule.stages_of(rank) for i in ranges[stage])
            # The run's own placement has as many stages; under another number of stages only the bytes per rank count.
            old = sum(sizes[i] for stage in schedule.stages_of(rank) if stage < len(old_ranges) for i in old_ranges[stage])
            seconds.append(max(0.0, side.optimizer_s + per_byte * (new - old)))
        return seconds

    def _transfers_under(self, ranges: Sequence[range]) -> dict[tuple[int, int], float]:
        sizes = [layer.boundary_bytes for layer in self.layers.layers]
        transfers = {}
        for border, (new, old) in enumerate(zip(ranges[:-1], self.plan.stage_layers(len(sizes))[:-1], strict=False)):
            before, after = sizes[old.stop - 1], sizes[new.stop - 1]
            factor = after / before if before and after else 1.0
            for key in ((border, border + 1), (border + 1, border)):
                transfers[key] = self.transfer_s.get(key, 0.0) * factor
        return transfers


def measure_step(steady: SteadySteps, info: RunInfo, layers: LayerCosts, links: Sequence[LinkMeasure]) -> MeasuredStep:
    """Return what the usable steps of a run are made of; there must be at least one."""
    step_time = steady.step_time
    assert step_time is not None, "the caller has usable steps"
    ranks = max(info.stage_to_rank) + 1
    spans = _rank_spans(steady)
    sends = steady.events[steady.events["op"] == int(Op.SEND)]
    send_s = float((sends["end_ns"] - sends["start_ns"]).median() / 1e9) if len(sends) else 0.0
    return MeasuredStep(
        plan=info.read_plan(),
        step_time=step_time,
        step_sigma_s=robust_sigma(steady.step_times_s),
        layers=layers,
        mean_over_median=mean_over_median(steady),
        backward_input_share=_backward_input_share(steady),
        sides=_sides(spans, ranks),
        # A measured transfer begins with the send; the simulator's begins when the sender is done with handing over.
        transfer_s={(link.src_stage, link.dst_stage): max(0.0, _transfer(link) - send_s) for link in links},
        send_s=send_s,
        action_overhead_s=_action_overhead(spans),
        joined_end=bool((steady.events["op"] == int(Op.REDUCE)).any()),
    )


def _transfer(link: LinkMeasure) -> float:
    if link.transfer is not None and link.samples >= MIN_LINK_SAMPLES:
        return link.transfer.median
    # Too few receives blocked to see the link at work; the probe saw it idle, and a link that nobody waited for matters little.
    return link.probe_s or 0.0


def _rank_spans(steady: SteadySteps) -> pd.DataFrame:
    """Return one row per (rank, step), in seconds: before, inside and after the rank's actions, and what fills them."""
    events = steady.events.assign(seconds=(steady.events["end_ns"] - steady.events["start_ns"]) / 1e9)
    key = [events["rank"], events["step"]]
    op = events["op"]
    whole = events[op == int(Op.STEP)].groupby(["rank", "step"])[["start_ns", "end_ns"]].max()
    actions = events[op.isin(_PIPELINE)].groupby(["rank", "step"]).agg(first_ns=("start_ns", "min"), last_ns=("end_ns", "max"))
    spans = whole.join(actions, how="inner")
    first = spans["first_ns"].reindex(pd.MultiIndex.from_arrays(key)).to_numpy()
    last = spans["last_ns"].reindex(pd.MultiIndex.from_arrays(key)).to_numpy()
    before, after = (events["end_ns"] <= first).to_numpy(), (events["start_ns"] >= last).to_numpy()

    def total(chosen: "pd.Series[bool]") -> "pd.Series[float]":
        return events[chosen].groupby(["rank", "step"])["seconds"].sum().reindex(spans.index, fill_value=0.0)

    reduce_, waits = op == int(Op.REDUCE), op == int(Op.SEND_WAIT)
    inside_s = (spans["last_ns"] - spans["first_ns"]) / 1e9
    spans["before_s"] = (spans["first_ns"] - spans["start_ns"]) / 1e9
    spans["after_s"] = (spans["end_ns"] - spans["last_ns"]) / 1e9
    spans["reduce_before_s"], spans["reduce_after_s"] = total(reduce_ & before), total(reduce_ & after)
    spans["send_wait_after_s"] = total(waits & after)
    spans["optimizer_after_s"] = total((op == int(Op.OPTIMIZER)) & after)
    spans["idle_inside_s"] = (inside_s - total(op.isin(_BUSY) & ~before & ~after)).clip(lower=0.0)
    spans["actions"] = events[op.isin(COMPUTE_CODES)].groupby(["rank", "step"]).size().reindex(spans.index, fill_value=0)
    return spans


def _sides(spans: pd.DataFrame, ranks: int) -> tuple[RankSides, ...]:
    # A collective lasts for the rank that comes last; the others' longer time is waiting for it.
    collective = {name: float(spans[name].groupby("step").min().median()) for name in ("reduce_before_s", "reduce_after_s")}
    before = spans["before_s"] - spans["reduce_before_s"]
    after = spans["after_s"] - spans["reduce_after_s"] - spans["send_wait_after_s"] - spans["optimizer_after_s"]
    pipeline_rank = spans.index.get_level_values("rank") % ranks

    def median(values: "pd.Series[float]", rank: int) -> float:
        mine = values[pipeline_rank == rank]
        return max(0.0, float(mine.median())) if len(mine) else 0.0

    return tuple(
        RankSides(
            before_s=median(before, rank) + collective["reduce_before_s"],
            after_s=median(after, rank) + collective["reduce_after_s"],
            optimizer_s=median(spans["optimizer_after_s"], rank),
        )
        for rank in range(ranks)
    )


def _action_overhead(spans: pd.DataFrame) -> float:
    busy = spans[spans["actions"] > 0]
    return float((busy["idle_inside_s"] / busy["actions"]).median()) if len(busy) else 0.0


def _backward_input_share(steady: SteadySteps) -> float:
    op = steady.events["op"]
    seconds = (steady.events["end_ns"] - steady.events["start_ns"]).astype(float)
    whole = float(seconds[op == int(Op.BACKWARD_INPUT)].sum())
    weight = float(seconds[op == int(Op.BACKWARD_WEIGHT)].sum())
    return whole / (whole + weight) if whole + weight > 0 else 0.5
