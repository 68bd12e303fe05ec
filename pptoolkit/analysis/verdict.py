"""The verdict: what sets the pace, by whose own work, how sure that is, or that nothing stands out.

Waiting is what a slow stage does to the others, so it is no sign of being slow: only a rank's own work counts. In a balanced pipeline
some rank is always first by a little; a rank stands out when it works longer than the others by more than :data:`STANDS_OUT`, and does so
in the steps one by one, not only on average. What is no rank's work (a link, pauses, jitter, the host) is judged by what the steps would
take without it: see :mod:`pptoolkit.analysis.what_if`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.bubbles import BACKWARD_CODES
from pptoolkit.analysis.finding import Finding
from pptoolkit.analysis.grouping import duration_s, seconds_by_step
from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.regime import RegimeChange
from pptoolkit.analysis.replay import Recipe, Replay
from pptoolkit.analysis.stall_findings import find_checkpoints, find_stalled
from pptoolkit.analysis.stalls import Stall, find_stalls, without_stalls
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.what_if import find_jitter, find_loader, find_slow_devices, find_slow_hosts, find_slow_links
from pptoolkit.analysis.work import Contrast, typical_excess, work_or_device
from pptoolkit.errors import counted
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.run_info import RunInfo

STANDS_OUT = 0.05  # of the other ranks' own work; below, no cut of whole layers is worth a restart
MIN_STEPS = 5
OWN_WORK = {"forward": (int(Op.FORWARD),), "backward": BACKWARD_CODES, "data": (int(Op.DATA),), "optimizer": (int(Op.OPTIMIZER),)}
_NOT_COMPUTE = {"data": "slow_loader", "optimizer": "optimizer"}

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What sets the pace.

    Args:
        stage: The bottleneck stage, or None: nothing stands out, or it is no single stage's.
        rank: Pipeline rank that owns it.
        kind: What exceeds the others' most: ``"forward"``, ``"backward"``, ``"data"``, ``"optimizer"``, ``"link"``, ``"host"``,
            ``"jitter"``, ``"pause"``, ``"checkpoint"``; empty without a verdict.
        confidence: How sure it is, in [0, 1]; of a rank's own work the share of the steps in which it (or one named in ``also``) worked
            longest; without a verdict, 0.
        excess: How much longer the rank works than the others do (median over steps), as a ratio; None where it is not the rank's work.
        also: Stages that work within :data:`STANDS_OUT` of the bottleneck, so that relieving it alone gains nothing.
        evidence: One sentence with the numbers behind it.
        cause: A key of :data:`pptoolkit.analysis.finding.CAUSES`; empty without a verdict.
        passes: Forward and backward of the rank beside the others', seconds a step; empty where the verdict is not about its work.
        findings: Everything that was found, what costs most first; the verdict is the first of them.
    """

    stage: int | None
    rank: int | None
    kind: str
    confidence: float
    excess: Interval | None
    also: tuple[int, ...]
    evidence: str
    cause: str = ""
    passes: dict[str, Contrast] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()

    @property
    def title(self) -> str:
        """What a person reads first."""
        return self.findings[0].title if self.findings else "nothing stands out"

    def to_dict(self) -> dict[str, object]:
        return {
            "stage": self.stage,
            "rank": self.rank,
            "kind": self.kind,
            "cause": self.cause,
            "title": self.title,
            "confidence": self.confidence,
            "excess_ratio": self.excess.to_dict() if self.excess else None,
            "also": list(self.also),
            "evidence": self.evidence,
            "passes": {name: contrast.to_dict() for name, contrast in self.passes.items()},
            "findings": [finding.to_dict() for finding in self.findings],
        }


def judge(
    steady: SteadySteps,
    info: RunInfo,
    *,
    replay: Replay | None = None,
    layers: LayerCosts | None = None,
    changes: Sequence[RegimeChange] = (),
    checkpoints: pd.DataFrame | None = None,
) -> Verdict:
    """Return what sets the pace of the usable steps, or a verdict without a cause when nothing stands out.

    Args:
        steady: The usable steps.
        info: The run.
        replay: The replay of these steps; without it only the ranks' own work is judged.
        layers: Layer costs, to tell more work from a slower device.
        changes: Regime changes of the run.
        checkpoints: CHECKPOINT events of these steps, inside them or between them.
    """
    ranks = max(info.stage_to_rank) + 1
    if ranks == 1:
        return _nothing("there is one rank, so no stage waits for another")
    if steady.count < MIN_STEPS:
        return _nothing(
            f"{counted(steady.count, 'usable step')} {'is' if steady.count == 1 else 'are'} too few for a verdict; it needs {MIN_STEPS}"
        )
    stalls = find_stalls(replay) if replay is not None else []
    parts = own_work(steady, ranks=ranks)
    if replay is not None:
        _leave_out(stalls, replay, parts, steady, ranks)
    own = np.sum(list(parts.values()), axis=0)
    medians = np.median(own, axis=0)
    top = int(medians.argmax())
    excess = interval_of(own[:, top] / _others(own, top) - 1.0)
    stands_out = excess.median > STANDS_OUT and excess.low > STANDS_OUT / 2
    other = _without_work(replay, stalls, ranks) if replay is not None else []
    if checkpoints is not None:
        other = sorted([*other, *find_checkpoints(checkpoints, float(steady.step_times_s.sum()))], key=lambda found: -found.cost_ratio)
    jittery = any(f.cause == "jitter" and f.rank is not None and f.rank % ranks == top for f in other)
    if stands_out and jittery and typical_excess(steady, top, ranks=ranks) <= STANDS_OUT:
        # Times with a long tail have a long mean. That is what was named already, and no work that a cut could move.
        stands_out = False
    if not stands_out:
        if other:
            return _of_finding(other, info, excess)
        spread = f"between {medians.min() * 1e3:.1f} and {medians.max() * 1e3:.1f} ms"
        return _nothing(f"every rank works {spread} a step on its own, within {STANDS_OUT:.0%} of the others", excess)
    near = [rank for rank in range(ranks) if rank != top and medians[rank] > medians[top] * (1 - STANDS_OUT)]
    kind = max(parts, key=lambda name: float(np.median(parts[name][:, top] - _others(parts[name], top))))
    passes = {name: Contrast(float(np.median(parts[name][:, top])), float(np.median(_others(parts[name], top)))) for name in OWN_WORK}
    stage = _heaviest_stage(steady, info, top)
    cause, why = _NOT_COMPUTE.get(kind, ""), ""
    if not cause:
        device = work_or_device(top, info, passes["forward"], passes["backward"], layers=layers, changes=changes)
        cause, why = device.cause, f"; {device.sentence}"
    work = Finding(
        cause=cause,
        kind=kind,
        stage=stage,
        rank=top,
        cost_ratio=_cost_of_work(replay, stalls, [top, *near], ranks) if replay is not None else excess.median / (1 + excess.median),
        confidence=float(np.mean(own[:, [top, *near]].max(axis=1) >= own.max(axis=1))),
        evidence=_evidence(top, kind, own, parts, excess) + why,
    )
    # A device that is slow on one replica also makes its rank's mean work long: it is named once, by the replica.
    named = any(
        f.cause == "slower_device" and f.rank is not None and f.rank % ranks == top and f.cost_ratio > work.cost_ratio / 2 for f in other
    )
    rest = [f for f in other if f.kind != "data" or kind != "data"]
    findings = sorted([*rest, *([] if named else [work])], key=lambda found: -found.cost_ratio)
    if findings[0] is not work:
        return _of_finding(findings, info, None)
    return Verdict(
        stage=stage,
        rank=top,
        kind=kind,
        confidence=work.confidence,
        excess=excess,
        also=tuple(stage for stage, owner in enumerate(info.stage_to_rank) if owner in near),
        evidence=work.evidence,
        cause=cause,
        passes={name: passes[name] for name in ("forward", "backward")} if cause not in _NOT_COMPUTE.values() else {},
        findings=tuple(findings),
    )


def own_work(steady: SteadySteps, *, ranks: int) -> dict[str, Seconds]:
    """Return seconds of own work by kind, of shape (steps, pipeline ranks); the mean over the replicas."""
    # Ranks are numbered replica by replica.
    events = steady.events.assign(pipeline_rank=steady.events["rank"] % ranks)
    replicas = max(1, events["replica"].nunique())
    tables = {}
    for name, codes in OWN_WORK.items():
        table = seconds_by_step(events[events["op"].isin(codes)], "pipeline_rank", steps=steady.windows.index)
        tables[name] = table.reindex(columns=range(ranks)).fillna(0.0).to_numpy(dtype=np.float64) / replicas
    return tables


def _leave_out(stalls: Sequence[Stall], replay: Replay, parts: dict[str, Seconds], steady: SteadySteps, ranks: int) -> None:
    """Take stalls out of the ranks' own work, in place: to stand still is no work, and a few such steps must not hide who works longest."""
    place = {int(step): row for row, step in enumerate(steady.windows.index)}
    replicas = max(1, len(replay.nodes.ranks) // ranks)
    for stall in stalls:
        if 0 <= stall.node < replay.nodes.count:
            kind = next((name for name, codes in OWN_WORK.items() if replay.nodes.op[stall.node] in codes and stall.in_node), None)
            if kind is not None:
                parts[kind][place[stall.step], stall.rank % ranks] -= stall.excess_s / replicas


def _without_work(replay: Replay, stalls: Sequence[Stall], ranks: int) -> list[Finding]:
    """Return what was found beside the ranks' own work, what costs most first."""
    found = [
        *find_stalled(replay, stalls),
        *find_slow_devices(replay, pipeline_ranks=ranks),
        *find_slow_links(replay),
        *find_slow_hosts(replay),
        *find_jitter(replay, stalls),
    ]
    if not any(finding.kind == "data" for finding in found):
        found += find_loader(replay)
    return sorted(found, key=lambda finding: -finding.cost_ratio)


def _cost_of_work(replay: Replay, stalls: Sequence[Stall], ranks: Sequence[int], pipeline_ranks: int) -> float:
    """Return the share of the step time that is gone when ``ranks`` work no longer than the others do, all kinds of work together."""
    nodes = replay.nodes
    usual = without_stalls(replay, list(stalls))
    relieved = usual.copy()
    rank_of = nodes.rank[replay.compute] % pipeline_ranks
    per_rank = np.asarray([np.median(usual[rank_of == rank].sum(axis=0)) for rank in range(pipeline_ranks)])
    others = float(np.mean([per_rank[rank] for rank in range(pipeline_ranks) if rank not in ranks] or per_rank))
    for rank in ranks:
        relieved[rank_of == rank] *= min(1.0, others / per_rank[rank]) if per_rank[rank] > 0 else 1.0
    gap, own, weight = replay.inputs(Recipe(compute_s=relieved))
    for op in (int(Op.DATA), int(Op.OPTIMIZER)):
        mine = np.flatnonzero((nodes.op == op) & np.isin(nodes.rank % pipeline_ranks, ranks))
        rest = np.flatnonzero((nodes.op == op) & ~np.isin(nodes.rank % pipeline_ranks, ranks))
        own[mine] = np.minimum(own[mine], np.median(own[rest]) if len(rest) else 0.0)
    ready, end = replay.graph.play(gap, own, weight)
    step_s = replay.periods(ready, end, own)
    return max(0.0, float(np.median(1 - step_s / replay.replayed_s)))


def _others(seconds: Seconds, rank: int) -> Seconds:
    """Return the mean of the other ranks in each step."""
    return np.asarray(np.delete(seconds, rank, axis=1).mean(axis=1), dtype=np.float64)


def _heaviest_stage(steady: SteadySteps, info: RunInfo, rank: int) -> int:
    mine = [stage for stage, owner in enumerate(info.stage_to_rank) if owner == rank]
    compute = steady.events[steady.events["op"].isin((*OWN_WORK["forward"], *OWN_WORK["backward"]))]
    seconds = {stage: float(duration_s(compute[compute["stage"] == stage]).sum()) for stage in mine}
    return max(mine, key=seconds.__getitem__)


def _evidence(rank: int, kind: str, own: Seconds, parts: dict[str, Seconds], excess: Interval) -> str:
    def ms(seconds: Seconds) -> str:
        return f"{np.median(seconds) * 1e3:.1f} ms"

    def beside(name: str) -> str:
        return f"{name} {ms(parts[name][:, rank])} against {ms(_others(parts[name], rank))}"

    shown = ["forward", "backward"] if kind in ("forward", "backward") else [kind]
    return (
        f"rank {rank} works {ms(own[:, rank])} a step on its own and the others {ms(_others(own, rank))} on average, "
        f"{excess.median:.0%} longer ({excess.low:.0%} to {excess.high:.0%}); "
        f"most of the difference is {kind}: {', '.join(beside(name) for name in shown)}"
    )


def _of_finding(findings: Sequence[Finding], info: RunInfo, excess: Interval | None) -> Verdict:
    first = findings[0]
    ranks = max(info.stage_to_rank) + 1
    return Verdict(
        stage=first.stage,
        rank=None if first.rank is None else first.rank % ranks,
        kind=first.kind,
        confidence=first.confidence,
        excess=excess,
        also=(),
        evidence=first.evidence,
        cause=first.cause,
        findings=tuple(findings),
    )


def _nothing(evidence: str, excess: Interval | None = None) -> Verdict:
    return Verdict(stage=None, rank=None, kind="", confidence=0.0, excess=excess, also=(), evidence=f"nothing stands out: {evidence}")
