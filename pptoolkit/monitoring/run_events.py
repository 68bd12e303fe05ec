"""What happened to a run, as annotations for Grafana: start, plan applied, restarts, checkpoints. Each is added once."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pptoolkit.errors import RunError
from pptoolkit.monitoring.grafana_push import Change, Outcome
from pptoolkit.monitoring.grafana_server import GrafanaServer
from pptoolkit.telemetry import RunDirectory, RunInfo

TAG = "pptoolkit"
_MOST = 5000
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class RunEvent:
    """One moment of a run.

    Args:
        run_id: The run.
        kind: ``start``, ``plan``, ``restart`` or ``checkpoint``.
        time_ms: When, unix time in milliseconds.
        text: What a person reads.
    """

    run_id: str
    kind: str
    time_ms: int
    text: str

    @property
    def tags(self) -> list[str]:
        return [TAG, f"run:{self.run_id}", f"event:{self.kind}"]


def run_events(run: RunDirectory) -> list[RunEvent]:
    """Return the events of one run, the earliest first.

    Raises:
        RunError: If there is no readable run.
    """
    info = run.read_info()
    return sorted([*_attempts(info), *_checkpoints(run, info)], key=lambda event: (event.time_ms, event.kind))


def push_events(server: GrafanaServer, runs: Iterable[RunDirectory]) -> list[Change]:
    """Add what Grafana does not have yet of these runs' events.

    Raises:
        GrafanaError: If Grafana refuses.
    """
    changes = []
    for run in runs:
        try:
            events = run_events(run)
        except RunError as error:
            changes.append(Change(f"annotations of {run.path.name}", Outcome.KEPT, str(error)))
            continue
        if events:
            changes.append(_push(server, events))
    return changes


def _push(server: GrafanaServer, events: list[RunEvent]) -> Change:
    run_id = events[0].run_id
    known = server.find_annotations(
        [TAG, f"run:{run_id}"], from_ms=events[0].time_ms - _DAY_MS, to_ms=events[-1].time_ms + _DAY_MS, limit=_MOST
    )
    there = {(int(found["time"]), tag) for found in known for tag in found.get("tags", ())}
    missing = [event for event in events if (event.time_ms, f"event:{event.kind}") not in there]
    for event in missing:
        server.add_annotation(time_ms=event.time_ms, tags=event.tags, text=event.text)
    subject = f"annotations of run {run_id!r}"
    return Change(subject, Outcome.CREATED, f"{len(missing)} of {len(events)}") if missing else Change(subject, Outcome.UNCHANGED)


def _attempts(info: RunInfo) -> Iterator[RunEvent]:
    for attempt in info.attempts:
        time_ms = round(attempt.started_unix_s * 1000)
        if attempt.attempt > 0:
            yield RunEvent(info.run_id, "restart", time_ms, f"run {info.run_id}: restart {attempt.attempt}")
            continue
        yield RunEvent(
            info.run_id,
            "start",
            time_ms,
            f"run {info.run_id} starts: {info.ranks} ranks, {info.schedule}, {info.micro_batches} micro-batches",
        )
        if info.parent:
            cuts = ", ".join(str(cut) for cut in info.plan.get("cuts", ()))
            yield RunEvent(
                info.run_id, "plan", time_ms, f"run {info.run_id} applies the plan suggested from run {info.parent}: cuts {cuts}"
            )


def _checkpoints(run: RunDirectory, info: RunInfo) -> Iterator[RunEvent]:
    """A checkpoint counts from its marker on: before, it is not complete."""
    for marker in run.checkpoints_path.glob("step-*/COMPLETE"):
        try:
            time_ms = round(marker.stat().st_mtime * 1000)
            step = int(marker.parent.name.removeprefix("step-"))
        except (OSError, ValueError):
            continue  # removed while we looked, or not one of ours
        yield RunEvent(info.run_id, "checkpoint", time_ms, f"run {info.run_id}: checkpoint after step {step}")
