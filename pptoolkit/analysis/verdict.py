"""The verdict: which stage sets the pace by its own work, how sure that is, or that nothing stands out.

Waiting is what a slow stage does to the others, so it is no sign of being slow: only a rank's own work counts. In a balanced pipeline
some rank is always first by a little; a rank stands out when it works longer than the others by more than :data:`STANDS_OUT`, and does so
in the steps one by one, not only on average.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pptoolkit.analysis.bubbles import BACKWARD_CODES
from pptoolkit.analysis.grouping import duration_s, seconds_by_step
from pptoolkit.analysis.statistics import Interval, interval_of
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.run_info import RunInfo

STANDS_OUT = 0.05  # of the other ranks' own work; below, no cut of whole layers is worth a restart
MIN_STEPS = 5
OWN_WORK = {"forward": (int(Op.FORWARD),), "backward": BACKWARD_CODES, "data": (int(Op.DATA),), "optimizer": (int(Op.OPTIMIZER),)}

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What sets the pace.

    Args:
        stage: The bottleneck stage, or None: nothing stands out.
        rank: Pipeline rank that owns it.
        kind: Own work that exceeds the others' most: ``"forward"``, ``"backward"``, ``"data"``, ``"optimizer"``; empty without a verdict.
        confidence: Share of the steps in which this rank (or one named in ``also``) worked longest, in [0, 1]; without a verdict, 0.
        excess: How much longer the rank works than the others do (median over steps), as a ratio.
        also: Stages that work within :data:`STANDS_OUT` of the bottleneck, so that relieving it alone gains nothing.
        evidence: One sentence with the numbers behind it.
    """

    stage: int | None
    rank: int | None
    kind: str
    confidence: float
    excess: Interval | None
    also: tuple[int, ...]
    evidence: str

    def to_dict(self) -> dict[str, object]:
        return {
            "stage": self.stage,
            "rank": self.rank,
            "kind": self.kind,
            "confidence": self.confidence,
            "excess_ratio": self.excess.to_dict() if self.excess else None,
            "also": list(self.also),
            "evidence": self.evidence,
        }


def judge(steady: SteadySteps, info: RunInfo) -> Verdict:
    """Return the bottleneck of the usable steps, or a verdict without a stage when nothing stands out."""
    ranks = max(info.stage_to_rank) + 1
    if ranks == 1:
        return _nothing("there is one rank, so no stage waits for another")
    if steady.count < MIN_STEPS:
        return _nothing(f"{steady.count} usable steps are too few for a verdict; it needs {MIN_STEPS}")
    parts = own_work(steady, ranks=ranks)
    own = np.sum(list(parts.values()), axis=0)
    medians = np.median(own, axis=0)
    top = int(medians.argmax())
    excess = interval_of(own[:, top] / _others(own, top) - 1.0)
    if not (excess.median > STANDS_OUT and excess.low > STANDS_OUT / 2):
        spread = f"between {medians.min() * 1e3:.1f} and {medians.max() * 1e3:.1f} ms"
        return _nothing(f"every rank works {spread} a step on its own, within {STANDS_OUT:.0%} of the others", excess)
    near = [rank for rank in range(ranks) if rank != top and medians[rank] > medians[top] * (1 - STANDS_OUT)]
    kind = max(parts, key=lambda name: float(np.median(parts[name][:, top] - _others(parts[name], top))))
    return Verdict(
        stage=_heaviest_stage(steady, info, top),
        rank=top,
        kind=kind,
        confidence=float(np.mean(own[:, [top, *near]].max(axis=1) >= own.max(axis=1))),
        excess=excess,
        also=tuple(stage for stage, owner in enumerate(info.stage_to_rank) if owner in near),
        evidence=_evidence(top, kind, own, parts[kind], excess),
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


def _others(seconds: Seconds, rank: int) -> Seconds:
    """Return the mean of the other ranks in each step."""
    return np.asarray(np.delete(seconds, rank, axis=1).mean(axis=1), dtype=np.float64)


def _heaviest_stage(steady: SteadySteps, info: RunInfo, rank: int) -> int:
    mine = [stage for stage, owner in enumerate(info.stage_to_rank) if owner == rank]
    compute = steady.events[steady.events["op"].isin((*OWN_WORK["forward"], *OWN_WORK["backward"]))]
    seconds = {stage: float(duration_s(compute[compute["stage"] == stage]).sum()) for stage in mine}
    return max(mine, key=seconds.__getitem__)


def _evidence(rank: int, kind: str, own: Seconds, part: Seconds, excess: Interval) -> str:
    def ms(seconds: Seconds) -> str:
        return f"{np.median(seconds) * 1e3:.1f} ms"

    return (
        f"rank {rank} works {ms(own[:, rank])} a step on its own and the others {ms(_others(own, rank))} on average, "
        f"{excess.median:.0%} longer ({excess.low:.0%} to {excess.high:.0%}); "
        f"most of the difference is {kind}: {ms(part[:, rank])} against {ms(_others(part, rank))}"
    )


def _nothing(evidence: str, excess: Interval | None = None) -> Verdict:
    return Verdict(stage=None, rank=None, kind="", confidence=0.0, excess=excess, also=(), evidence=f"nothing stands out: {evidence}")
