"""Measure what a run's step is made of: from its usable steps to :class:`~pptoolkit.planner.step_costs.MeasuredStep`."""

from collections.abc import Mapping, Sequence

import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.grouping import seconds_by_step
from pptoolkit.analysis.layer_costs import LayerCosts, mean_over_median
from pptoolkit.analysis.links import LinkMeasure
from pptoolkit.analysis.stages import schedule_of
from pptoolkit.analysis.statistics import robust_sigma
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.planner.memory import STATE_PER_PARAMETER_BYTE, rank_memory, stage_memory
from pptoolkit.planner.step_costs import MeasuredStep, RankSides
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.run_info import RunInfo

MIN_LINK_SAMPLES = 5
_PARTS = (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT)
_PIPELINE = (*COMPUTE_CODES, int(Op.RECV), int(Op.SEND))
_BUSY = (*_PIPELINE, int(Op.SEND_WAIT), int(Op.DATA), int(Op.REDUCE), int(Op.OPTIMIZER), int(Op.CHECKPOINT))


def measure_step(steady: SteadySteps, info: RunInfo, layers: LayerCosts, links: Sequence[LinkMeasure]) -> MeasuredStep:
    """Return what the usable steps of a run are made of; there must be at least one."""
    step_time = steady.step_time
    assert step_time is not None, "the caller has usable steps"
    ranks = max(info.stage_to_rank) + 1
    spans = rank_spans(steady)
    sends = steady.events[steady.events["op"] == int(Op.SEND)]
    # A send that lasts until its receive is there is no work of the sender.
    hands_over = len(sends) and not info.blocking_links
    shares = _split_seconds(steady)
    send_s = float((sends["end_ns"] - sends["start_ns"]).median() / 1e9) if hands_over else 0.0
    return MeasuredStep(
        plan=info.read_plan(),
        step_time=step_time,
        step_sigma_s=robust_sigma(steady.step_times_s),
        layers=layers,
        mean_over_median=mean_over_median(steady),
        backward_input_share=_backward_input_share(shares),
        sides=_sides(spans, ranks),
        # A measured transfer begins with the send; the simulator's begins when the sender is done with handing over.
        transfer_s={(link.src_stage, link.dst_stage): max(0.0, _transfer(link) - send_s) for link in links},
        send_s=send_s,
        action_overhead_s=_action_overhead(spans),
        joined_end=bool((steady.events["op"] == int(Op.REDUCE)).any()),
        batch_samples=info.batch_size,
        other_bytes=_other_bytes(steady, info, layers),
        bandwidth=max((link.throughput.median for link in links if link.throughput is not None), default=0.0),
        passes=info.accumulation,
        input_shares={stage: i / (i + w) for stage, (i, w) in shares.items()},
    )


def _other_bytes(steady: SteadySteps, info: RunInfo, layers: LayerCosts) -> tuple[int, ...]:
    """Return each pipeline rank's measured peak less what its layers are known to hold; empty where memory was not measured."""
    peaks = steady.events.groupby(steady.events["rank"] % (max(info.stage_to_rank) + 1))["memory_bytes"].max()
    schedule = schedule_of(info)
    plan = info.read_plan()
    memory = stage_memory(layers, plan, size_ratio=1.0, state_bytes_ratio=STATE_PER_PARAMETER_BYTE)
    if schedule is None or memory is None or not len(peaks) or int(peaks.max()) <= 0:
        return ()
    return tuple(max(0, int(peaks.get(rank, 0)) - held) for rank, held in enumerate(rank_memory(schedule, memory)))


def _transfer(link: LinkMeasure) -> float:
    if link.transfer is not None and link.samples >= MIN_LINK_SAMPLES:
        return link.transfer.median
    # Too few receives blocked to see the link at work; the probe saw it idle, and a link that nobody waited for matters little.
    return link.probe_s or 0.0


def rank_spans(steady: SteadySteps) -> pd.DataFrame:
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


def _split_seconds(steady: SteadySteps) -> dict[int, tuple[float, float]]:
    """Return the seconds of all I and of all W by stage, of the stages that run them apart."""
    sums = [seconds_by_step(steady.events[steady.events["op"] == int(op)], "stage", steps=steady.windows.index).sum() for op in _PARTS]
    pairs = {int(stage): (float(sums[0].get(stage, 0.0)), float(sums[1].get(stage, 0.0))) for stage in {*sums[0].index, *sums[1].index}}
    return {stage: pair for stage, pair in pairs.items() if sum(pair) > 0}


def _backward_input_share(seconds: Mapping[int, tuple[float, float]]) -> float:
    """Return the part that I takes in the stages whose input needs a gradient; half where nothing is known."""
    later = [pair for stage, pair in seconds.items() if stage > 0]
    whole = sum(i + w for i, w in later)
    return sum(i for i, _ in later) / whole if whole > 0 else 0.5
