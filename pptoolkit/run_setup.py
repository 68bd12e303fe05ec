"""What the trainer writes into run.json: at the start, when training begins, and when it ends. Rank 0 writes, all agree."""

import importlib.metadata
import os
import platform
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from pptoolkit.analysis.segments import Segment, segments_of
from pptoolkit.errors import RunError
from pptoolkit.failure import RankFailure
from pptoolkit.plan import Plan
from pptoolkit.plan_history import PlanHistory
from pptoolkit.schedule import build_schedule
from pptoolkit.simulator import schedule_bubble_ratio
from pptoolkit.telemetry import Attempt, RunDirectory, RunInfo, RunStatus
from pptoolkit.telemetry.session import Telemetry

_APPEARS_WITHIN_S = 5.0  # the rank that makes a directory on this host is a few system calls ahead of us


class RunSetup:
    """The facts of one run, and the one place that writes them.

    Args:
        plan: The plan that the run executes, already checked.
        layers: Names of the model's layers.
        ranks: Processes of the run.
        seed: The run's seed.
        accumulation: Pipeline steps per step of the optimizer.

    Attributes:
        keeper: Whether this rank writes run.json: rank 0, and one rank on every other host that has a directory of its own.

    Raises:
        PlanError: If the plan's stages and replicas do not fit the number of ranks.
    """

    def __init__(self, plan: Plan, *, layers: Sequence[str], ranks: int, seed: int, accumulation: int = 1) -> None:
        self.plan, self._layers, self._ranks, self._seed, self._accumulation = plan, tuple(layers), ranks, seed, accumulation
        self.keeper = False
        self.schedule = build_schedule(
            plan.schedule, ranks=plan.pipeline_ranks(ranks), stages=plan.stages, micro_batches=plan.micro_batches
        )

    def create(self, path: Path, *, config: dict[str, Any] | None = None, command: Sequence[str] = ()) -> RunDirectory:
        """Make a new run directory at ``path``, or at ``path-2`` and so on where that is taken.

        Raises:
            RunError: If it cannot be written.
        """
        target, number = path, 1
        while target.exists() and (not target.is_dir() or any(target.iterdir())):
            number += 1
            target = path.with_name(f"{path.name}-{number}")
        run = RunDirectory.create(target, self._info(target.name, config or {}, tuple(command)))
        self.plan.save(run.plan_path)
        return run

    def open(self, run: str | Path | RunDirectory, *, rank: int) -> RunDirectory:
        """Return the run directory; rank 0 makes it where it is only a path, and every other host its own where none is shared.

        Every rank calls it together.

        Raises:
            RunError: On every rank, if some host cannot write its directory.
        """
        if isinstance(run, RunDirectory):
            self.keeper = rank == 0
            return run
        offer: list[Any] = [None]
        opened: RunDirectory | None = None
        if rank == 0:
            self.keeper = True
            try:
                opened = self.create(Path(run), command=sys.argv)
                offer = [(str(opened.path), opened.read_info())]
            except RunError as error:
                offer = [error]
        dist.broadcast_object_list(offer, src=0)
        if isinstance(offer[0], RunError):
            raise offer[0]
        failed: RunError | None = None
        if opened is None:
            try:
                opened, self.keeper = adopt(Path(offer[0][0]), offer[0][1])
            except RunError as error:
                failed = error
        # Also a barrier: nobody writes into a directory that is still being made.
        failures: list[Any] = [None] * self._ranks
        dist.all_gather_object(failures, None if failed is None else f"rank {rank} on {socket.gethostname()}: {failed}")
        if told := [failure for failure in failures if failure is not None]:
            raise failed or RunError(told[0])
        assert opened is not None
        return opened

    def share_endpoints(self, run: RunDirectory, telemetry: Telemetry, *, device: str = "cpu", gpus: Sequence[str] = ()) -> None:
        """Tell every host where all ranks serve, and run.json on which hosts and devices they are; every rank calls it together.

        Args:
            run: The run directory.
            telemetry: This rank's.
            device: Kind of device of all ranks.
            gpus: UUID of each rank's GPU.
        """
        gathered: list[Any] = [None] * self._ranks
        dist.all_gather_object(gathered, (socket.gethostname(), telemetry.endpoint))
        if self.keeper:
            run.update_info(hosts=list(dict.fromkeys(host for host, _ in gathered)), device=device, gpus=list(gpus))
            telemetry.add_peers([endpoint for _, endpoint in gathered if endpoint is not None])

    def announce(self, run: RunDirectory, *, steps: int, batch_size: int, tokens_per_sample: int) -> None:
        """Say that training begins."""
        run.update_info(status=RunStatus.RUNNING.value, message="", steps=steps, batch_size=batch_size, tokens_per_sample=tokens_per_sample)

    def share_layer_facts(self, run: RunDirectory, own: Sequence[dict[str, Any]]) -> None:
        """Gather what each rank knows of its layers, and write parameters and bytes of every layer, in model order.

        Every rank calls it together.
        """
        gathered: list[Any] = [None] * self._ranks
        dist.all_gather_object(gathered, list(own))
        if self.keeper:
            facts = {fact["index"]: fact for each in gathered for fact in each}  # of several replicas, one
            run.update_info(layer_facts=[{k: v for k, v in facts[index].items() if k != "index"} for index in sorted(facts)])

    def recut(self, run: RunDirectory, plan: Plan, *, step: int, seconds: float, moved_bytes: int, sentence: str) -> None:
        """Say that another plan holds from ``step`` on; the one before stays in the history of plan.toml.

        Raises:
            PlanError: If plan.toml cannot be written.
            RunError: Likewise run.json.
        """
        self.plan = plan
        if not self.keeper:
            return
        PlanHistory(run.plan_path).save(plan)

        def change(info: RunInfo) -> RunInfo:
            began = Segment(
                first_step=step, plan=plan.to_dict(), began_unix_s=time.time(), moving_s=seconds, moved_bytes=moved_bytes, sentence=sentence
            )
            return info.evolve(plan=plan.to_dict(), segments=[s.model_dump(mode="json") for s in (*segments_of(info), began)])

        run.update_info(change)

    def end(self, run: RunDirectory, status: RunStatus, message: str = "") -> None:
        """Say how the run ended."""
        _end_attempt(run, status, message, None)

    def fail(self, run: RunDirectory, failure: RankFailure) -> None:
        """Say that a rank failed. A victim never hides the cause that another rank has told already."""
        try:
            if not (failure.victim and run.read_info().status is RunStatus.FAILED):
                _end_attempt(run, RunStatus.FAILED, failure.message, failure.rank)
        except RunError:
            pass  # the directory is gone or full: the error itself is about to be raised, which matters more

    def _info(self, run_id: str, config: dict[str, Any], command: tuple[str, ...]) -> RunInfo:
        now = time.time()
        origin = self.plan.origin
        return RunInfo(
            run_id=run_id,
            name=run_id,
            status=RunStatus.WAITING,
            created_unix_s=now,
            updated_unix_s=now,
            attempts=(Attempt(attempt=0, started_unix_s=now),),
            command=command,
            seed=self._seed,
            config=config,
            layers=self._layers,
            fingerprint=self.plan.fingerprint,
            plan=self.plan.to_dict(),
            stage_to_rank=self.schedule.stage_to_rank,
            ranks=self._ranks,
            replicas=self.plan.replicas,
            schedule=self.plan.schedule,
            micro_batches=self.plan.micro_batches,
            accumulation=self._accumulation,
            schedule_bubble_ratio=schedule_bubble_ratio(self.schedule.repeated(self._accumulation)),
            parent=Path(origin.run).name if origin is not None else None,
            versions={
                "python": platform.python_version(),
                "torch": torch.__version__,
                "pptoolkit": importlib.metadata.version("pptoolkit"),
            },
            hosts=(socket.gethostname(),),
            device="cpu",
        )


def adopt(path: Path, info: RunInfo) -> tuple[RunDirectory, bool]:
    """Return this host's directory of the run that rank 0 made, and whether this rank made it here.

    Args:
        path: Where rank 0 has it. Where another run is there on this host, a number is appended.
        info: The run's first run.json.

    Raises:
        RunError: If it cannot be written.
    """
    candidate, number = path, 1
    while True:
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            found = _await_run(RunDirectory(candidate))
            if found is not None and (found.run_id, found.created_unix_s) == (info.run_id, info.created_unix_s):
                return RunDirectory(candidate), False
            if found is None and candidate.is_dir() and not any(candidate.iterdir()):
                break  # an empty directory that somebody made for us
            number += 1
            candidate = path.with_name(f"{path.name}-{number}")
        except OSError as error:
            raise RunError(f"cannot make {candidate} on {socket.gethostname()}: {error.strerror}; choose a writable place") from error
        else:
            break
    run = RunDirectory.create(candidate, info)
    info.read_plan().save(run.plan_path)
    return run, True


def _await_run(run: RunDirectory) -> RunInfo | None:
    deadline = time.monotonic() + _APPEARS_WITHIN_S
    while run.path.is_dir() and not run.exists and time.monotonic() < deadline:
        time.sleep(0.05)
    try:
        return run.read_info()
    except RunError:
        return None


def _end_attempt(run: RunDirectory, status: RunStatus, message: str, failed_rank: int | None) -> None:
    def change(info: RunInfo) -> RunInfo:
        *earlier, last = info.attempts
        ended = {**last.model_dump(mode="json"), "ended_unix_s": time.time(), "status": status.value, "message": message}
        attempts = [*(a.model_dump(mode="json") for a in earlier), {**ended, "failed_rank": failed_rank}]
        return info.evolve(status=status.value, message=message, attempts=attempts)

    run.update_info(change)


def mark_failed(run: RunDirectory, message: str, *, rank: int | None) -> None:
    """Say that a run failed, for a process outside of it: the launcher that saw a rank die."""
    _end_attempt(run, RunStatus.FAILED, message, rank)


def visible_path(path: Path) -> str:
    """Return ``path`` as a person types it: relative to here where that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else str(path)
