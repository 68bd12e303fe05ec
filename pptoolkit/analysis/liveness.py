"""Is a run alive and getting on: from what run.json says and what the ranks' heartbeats show. Pure: the time of day is handed in.

    run.json says running --- heartbeats fresh, progress fresh ---> running
                          `-- some rank silent, or alive without progress, for longer than the patience ---> stalled
Whether a job ended is the launcher's word; a job killed with its launcher is stalled, since nobody was left to write more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pptoolkit.telemetry.heartbeat import Heartbeat
from pptoolkit.telemetry.run_info import RunInfo, RunStatus

PATIENCE_S = 30.0
STARTUP_PATIENCE_S = 120.0  # processes import, build layers and meet before their first heartbeat
_CLOCKS_DIFFER_S = 2.0  # wall clocks of hosts in good order, and rounding
SLOW_STEPS = 3  # a step that usually takes a minute is not stalled after half of one


class RunState(StrEnum):
    """How a run stands for who looks at it."""

    WAITING = "waiting"
    RUNNING = "running"
    STALLED = "stalled"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Liveness:
    """The state, and the sentence that explains it."""

    state: RunState
    reason: str


def judge_liveness(
    info: RunInfo, heartbeats: Iterable[Heartbeat], *, now_unix_s: float, progress_unix_s: float, step_time_s: float
) -> Liveness:
    """Return how the run stands.

    Args:
        info: run.json.
        heartbeats: The latest of each rank that wrote one.
        now_unix_s: The time.
        progress_unix_s: When a step was last seen to end; 0: never.
        step_time_s: Usual step time, 0 if unknown; a slow step gets :data:`SLOW_STEPS` times that before it counts as stalled.
    """
    if info.status.ended:
        return Liveness(state=RunState(info.status.value), reason=info.message)
    started = max([info.created_unix_s, *(attempt.started_unix_s for attempt in info.attempts)])
    attempt = max((attempt.attempt for attempt in info.attempts), default=0)
    # Older ones are of an earlier attempt; unless the wall clock was set back, which makes those of this attempt look old.
    set_back = now_unix_s < started - _CLOCKS_DIFFER_S
    beats = [beat for beat in heartbeats if beat.unix_s >= started or (set_back and beat.attempt >= attempt)]
    started = min(started, now_unix_s)
    if info.status is RunStatus.WAITING and not beats:
        return Liveness(state=RunState.WAITING, reason="the run has not started yet")
    silent = sorted(set(range(info.ranks)) - {beat.rank for beat in beats})
    if silent and now_unix_s - started > STARTUP_PATIENCE_S:
        who = "no rank has" if len(silent) == info.ranks else f"rank {silent[0]} has not"
        return _stalled(f"{who} given a sign of life in the {now_unix_s - started:.0f} s since the start")
    alive = [beat for beat in beats if beat.status == RunStatus.RUNNING]  # the others closed their telemetry in good order
    if not alive:
        return Liveness(state=RunState.RUNNING, reason="the processes are ending" if beats else "the processes are starting")
    return _judge_beats(alive, now_unix_s, max(progress_unix_s, started), step_time_s)


def _judge_beats(beats: Sequence[Heartbeat], now: float, progress: float, step_time_s: float) -> Liveness:
    oldest = min(beats, key=lambda beat: beat.unix_s)
    if now - oldest.unix_s > PATIENCE_S:
        return _stalled(f"rank {oldest.rank} has given no sign of life for {now - oldest.unix_s:.0f} s{_doing(oldest)}")
    # An op that has just begun is progress: a step can be long, and only a rank that stays in one place is stuck.
    # What lies in the future was written before the wall clock was set back: it says nothing about now.
    times = [progress, *(beat.op_start_unix_s or 0.0 for beat in beats)]
    latest = max((time for time in times if time <= now + _CLOCKS_DIFFER_S), default=now)
    training = any(beat.step >= 0 for beat in beats)
    if now - latest > max(PATIENCE_S if training else STARTUP_PATIENCE_S, SLOW_STEPS * step_time_s):
        stuck = min(beats, key=lambda beat: beat.op_start_unix_s or now)
        return _stalled(f"every rank is alive, but none has got on for {now - latest:.0f} s; rank {stuck.rank} longest{_doing(stuck)}")
    return Liveness(state=RunState.RUNNING, reason="")


def _stalled(reason: str) -> Liveness:
    return Liveness(state=RunState.STALLED, reason=reason)


def _doing(beat: Heartbeat) -> str:
    if not beat.op:
        return f", last seen in step {beat.step}"
    where = f", micro-batch {beat.micro_batch}" if beat.micro_batch >= 0 else ""
    return f", last seen in {beat.op} (step {beat.step}{where})"
