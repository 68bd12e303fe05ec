"""Findings about moments in which ranks stood still: pauses, slow batches of a loader, checkpoints."""

from collections.abc import Iterator, Sequence

import pandas as pd

from pptoolkit.analysis.finding import Finding
from pptoolkit.analysis.grouping import duration_s, groups_of
from pptoolkit.analysis.replay import Replay
from pptoolkit.analysis.stalls import Stall

LEAST_STALLED = 0.02  # of the time of all steps, for what was recorded as a checkpoint or comes again and again
_LEAST_RARE = 0.05  # for one or two moments that nothing explains: any machine has some of these
_AGAIN = 3  # steps
_STANDS_OUT = 3.0  # times the other ranks' stalls


def find_stalled(replay: Replay, stalls: Sequence[Stall]) -> Iterator[Finding]:
    """Yield a finding for each rank that stalls much more than the others, or one for all of them: a machine that does other work too."""
    total_s = float(replay.measured_s.sum())
    ranks = [int(rank) for rank in replay.nodes.ranks]
    for kind in sorted({stall.kind for stall in stalls}):
        mine = {rank: [stall for stall in stalls if stall.kind == kind and stall.rank == rank] for rank in ranks}
        lost = {rank: sum(stall.excess_s for stall in members) for rank, members in mine.items()}
        shared = _lower_median(list(lost.values()))
        for rank in ranks:
            usual = _lower_median([lost[other] for other in ranks if other != rank])
            if lost[rank] <= _STANDS_OUT * usual:
                continue
            staged = [stall.stage for stall in mine[rank] if stall.stage >= 0]
            stage = max(set(staged), key=staged.count) if staged else None
            moments = [(stall.step, stall.excess_s) for stall in mine[rank]]
            found = _stalled("slow_loader" if kind == "data" else "pause", rank, stage, moments, total_s)
            if found is not None:
                yield found
        # Once on every rank is what a young process does: its first full garbage collection, a cache that fills.
        again = _lower_median([float(len({stall.step for stall in members})) for members in mine.values()]) >= _AGAIN
        if shared > LEAST_STALLED * total_s and again:
            yield Finding(
                cause="slow_loader" if kind == "data" else "pause",
                kind=kind,
                stage=None,
                rank=None,
                cost_ratio=shared / total_s,
                confidence=0.8,
                evidence=(
                    f"all ranks stand still now and then, {_ms(shared)} in {replay.lanes} steps: {shared / total_s:.1%} of the time; "
                    "the machine does other work too"
                ),
            )


def find_checkpoints(checkpoints: pd.DataFrame, total_s: float) -> Iterator[Finding]:
    """Yield a finding for each rank whose checkpoints took a noticeable share of the time.

    Args:
        checkpoints: CHECKPOINT events, inside the steps or between them.
        total_s: Time of all steps that they fall into.
    """
    for (rank,), rows in groups_of(checkpoints, "rank"):
        moments = list(zip(rows["step"].tolist(), duration_s(rows).tolist(), strict=True))
        found = _stalled("checkpoint", rank, None, moments, total_s)
        if found is not None:
            yield found


def _stalled(cause: str, rank: int, stage: int | None, moments: Sequence[tuple[int, float]], total_s: float) -> Finding | None:
    lost_s = sum(seconds for _, seconds in moments)
    steps = sorted({step for step, _ in moments})
    least = LEAST_STALLED if cause == "checkpoint" or len(steps) >= _AGAIN else _LEAST_RARE
    if lost_s < least * total_s:
        return None
    when = f"at step {steps[0]}" if len(steps) == 1 else f"at {len(steps)} steps, the first ones {', '.join(map(str, steps[:4]))}"
    does = {"checkpoint": "saves a checkpoint", "slow_loader": "waits for its loader"}.get(cause, "stands still")
    return Finding(
        cause=cause,
        kind="data" if cause == "slow_loader" else cause,
        stage=stage,
        rank=rank,
        cost_ratio=lost_s / total_s,
        confidence=1.0 if len(steps) > 1 or cause == "checkpoint" else 0.8,
        evidence=f"rank {rank} {does} for {_ms(lost_s / len(moments))} {when}: {lost_s / total_s:.1%} of the time of all steps",
    )


def _lower_median(values: Sequence[float]) -> float:
    """Return the median, of an even number of values the lower one in the middle: one bad rank of two is not both of them."""
    return sorted(values)[(len(values) - 1) // 2] if values else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
