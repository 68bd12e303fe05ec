"""How a run is: each rank's sign of life, what a person should be told, and who waits for whom when nothing moves. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboard.charts.numbers import duration, percent, size
from pptoolkit.analysis.liveness import PATIENCE_S, Liveness, RunState
from pptoolkit.telemetry.event_reader import Skipped
from pptoolkit.telemetry.heartbeat import Heartbeat
from pptoolkit.telemetry.run_info import RunInfo

SILENT_AFTER_S = 15.0  # heartbeats come once a second, and every six where the machine is slow
LONG_OP_S = 5.0
SLOW_STEP = 1.5  # of the usual step time
_WAITING = {"recv": "waits to receive", "send_wait": "waits to send", "reduce": "waits in a collective"}
_DOING = {
    "forward": "computes a forward",
    "backward": "computes a backward",
    "backward_input": "computes a backward (input)",
    "backward_weight": "computes a backward (weight)",
    "send": "hands over a tensor",
    "optimizer": "runs the optimizer",
    "data": "waits for data",
    "checkpoint": "writes a checkpoint",
    "eval": "evaluates",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPulse:
    """One rank: ``state`` is ``"alive"``, ``"silent"``, ``"ended"`` or ``"not seen"``; ages in seconds, None where unknown."""

    rank: int
    stages: tuple[int, ...]
    state: str
    host: str = ""
    age_s: float | None = None
    step: int | None = None
    doing: str = ""
    since_s: float | None = None
    resident_bytes: int | None = None
    cpu_ratio: float | None = None
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to be told; ``level`` is ``"bad"``, ``"warning"`` or ``"note"``."""

    level: str
    text: str


def pulses(info: RunInfo, beats: Sequence[Heartbeat], *, now_unix_s: float) -> tuple[RankPulse, ...]:
    """Return every rank of the layout, with its latest sign of life where there is one."""
    by_rank = {beat.rank: beat for beat in beats}
    pipeline = max(info.stage_to_rank) + 1
    stages: list[list[int]] = [[] for _ in range(pipeline)]
    for stage, owner in enumerate(info.stage_to_rank):
        stages[owner].append(stage)
    return tuple(_pulse(rank, tuple(stages[rank % pipeline]), by_rank.get(rank), now_unix_s, info) for rank in range(info.ranks))


def _pulse(rank: int, stages: tuple[int, ...], beat: Heartbeat | None, now: float, info: RunInfo) -> RankPulse:
    if beat is None:
        return RankPulse(rank=rank, stages=stages, state="not seen")
    age_s = max(0.0, now - beat.unix_s)
    ended = beat.status != "running" or info.status.ended
    state = "ended" if ended else "silent" if age_s > SILENT_AFTER_S else "alive"
    since_s = None if beat.op_start_unix_s is None or ended else max(0.0, now - beat.op_start_unix_s)
    return RankPulse(
        rank=rank,
        stages=stages,
        state=state,
        host=beat.host,
        age_s=age_s,
        step=beat.step if beat.step >= 0 else None,
        doing="" if ended else doing(beat),
        since_s=since_s,
        resident_bytes=beat.resident_bytes,
        cpu_ratio=beat.host_cpu_ratio,
        dropped=beat.dropped,
    )


def doing(beat: Heartbeat) -> str:
    """Say what a rank is doing: ``"waits to receive, micro-batch 3 of stage 1"``."""
    if not beat.op:
        return "between ops"
    words = _WAITING.get(beat.op) or _DOING.get(beat.op) or beat.op.replace("_", " ")
    if beat.micro_batch >= 0:
        words += f", micro-batch {beat.micro_batch}"
    return f"{words} of stage {beat.stage}" if beat.stage >= 0 else words


def kind_of(pulse: RankPulse) -> str:
    """Return what a rank's latest sign of life says in a word: the keys of ``RANK_COLORS`` of the palette."""
    if pulse.state != "alive":
        return pulse.state
    if pulse.doing.startswith("waits"):
        return "waits"
    return "between ops" if pulse.doing == "between ops" else "computes"


def hang_report(found: Sequence[RankPulse]) -> tuple[str, ...]:
    """Say who holds a run up that stands still, as far as that can be seen; empty if nobody is long in one place."""
    stuck = [pulse for pulse in found if pulse.state == "alive" and (pulse.since_s or 0.0) > LONG_OP_S]
    silent = [pulse for pulse in found if pulse.state in ("silent", "not seen")]
    sentences = [
        f"Rank {p.rank} gives no sign of life" + (f" since {duration(p.age_s)}; last seen: {p.doing}." if p.age_s is not None else ".")
        for p in silent[:6]
    ]
    workers = [p for p in stuck if not p.doing.startswith("waits")]
    waiters = [p for p in stuck if p.doing.startswith("waits")]
    for p in sorted(workers, key=lambda p: -(p.since_s or 0))[:4]:
        sentences.append(f"Rank {p.rank} {p.doing} for {duration(p.since_s)}: the others may be waiting for it.")
    for p in sorted(waiters, key=lambda p: -(p.since_s or 0))[:4]:
        sentences.append(f"Rank {p.rank} {p.doing} for {duration(p.since_s)}.")
    if waiters and not workers and not silent:
        first = max(waiters, key=lambda p: p.since_s or 0)
        sentences.append(
            f"Every rank that stands still waits for another one; rank {first.rank} longest. That looks like a deadlock or a lost message."
        )
    return tuple(sentences)


def alerts(
    info: RunInfo,
    liveness: Liveness,
    found: Sequence[RankPulse],
    *,
    skipped: Skipped,
    steps: pd.DataFrame,
    losses: pd.DataFrame,
    uncertainty_s: dict[int, float],
) -> tuple[Alert, ...]:
    """Return what a person should know, the worst first.

    Args:
        info: run.json.
        liveness: How the run stands.
        found: From :func:`pulses`.
        skipped: What could not be read.
        steps: Step and step_time_s, in order.
        losses: Step and loss, in order.
        uncertainty_s: Clock uncertainty by rank.
    """
    told: list[Alert] = []
    if liveness.state in (RunState.STALLED, RunState.FAILED):
        told.append(Alert("bad", f"The run is {liveness.state.value}: {liveness.reason}"))
    silent = [p.rank for p in found if p.state == "silent" and (p.age_s or 0) <= PATIENCE_S]
    if silent:
        told.append(Alert("warning", f"{_ranks(silent)} gave no sign of life in the last {SILENT_AFTER_S:.0f} s."))
    told += _loss_alerts(losses) + _pace_alerts(steps)
    dropped = {p.rank: p.dropped for p in found if p.dropped}
    if dropped:
        what = f"{sum(dropped.values()):,} events were dropped on {_ranks(list(dropped))}"
        text = f"{what}: the telemetry could not keep up. Training did not wait."
        told.append(Alert("warning", text))
    if skipped.bytes or skipped.notices:
        told.append(
            Alert("warning", f"{size(skipped.bytes)} of {skipped.files} event files could not be read. {' '.join(skipped.notices[:2])}")
        )
    told += _clock_alerts(steps, uncertainty_s)
    return tuple(told)


def _loss_alerts(losses: pd.DataFrame) -> list[Alert]:
    if losses.empty:
        return []
    values = losses["loss"].to_numpy(dtype=np.float64)
    broken = ~np.isfinite(values)
    if broken.any():
        first = int(losses["step"].to_numpy()[broken.argmax()])
        return [Alert("bad", f"The loss is no number since step {first}.")]
    if len(values) >= 20:
        usual = float(np.median(values[-20:-1]))
        if values[-1] > 2 * usual > 0:
            return [Alert("warning", f"The loss rose to {values[-1]:.4g}, twice its median over the last steps ({usual:.4g}).")]
    return []


def _pace_alerts(steps: pd.DataFrame) -> list[Alert]:
    if len(steps) < 10:
        return []
    times = steps["step_time_s"].to_numpy(dtype=np.float64)
    usual, last = float(np.median(times[-200:])), float(np.median(times[-5:]))
    if last > SLOW_STEP * usual:
        return [
            Alert("warning", f"The last 5 steps took {duration(last)}, {percent(last / usual - 1)} longer than usual ({duration(usual)}).")
        ]
    return []


def _clock_alerts(steps: pd.DataFrame, uncertainty_s: dict[int, float]) -> list[Alert]:
    if not uncertainty_s or steps.empty:
        return []
    rank, worst = max(uncertainty_s.items(), key=lambda item: item[1])
    step_s = float(steps["step_time_s"].tail(200).median())
    if worst > 0.05 * step_s and math.isfinite(step_s):
        what = f"The clock of rank {rank} is known to {duration(worst)} only, {percent(worst / step_s)} of a step"
        return [Alert("note", f"{what}: bars of different ranks may be shifted.")]
    return []


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8])) + (" and more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
