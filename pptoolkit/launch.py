"""Starting the ranks of a run on this machine with torchrun's agent, and saying in one message how it ended."""

import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pptoolkit.config import RunConfig
from pptoolkit.engine import loopback
from pptoolkit.engine.compiled import check_compile
from pptoolkit.engine.device import Accelerators, check_launch
from pptoolkit.engine.loader import open_source
from pptoolkit.errors import RunError, TrainingError
from pptoolkit.failure import RankFailure, read_failures
from pptoolkit.job import Job, make_job, make_plan
from pptoolkit.job_settings import make_optimisation
from pptoolkit.plan import Plan
from pptoolkit.rebalance import check_rebalance
from pptoolkit.run_setup import RunSetup, mark_failed, visible_path
from pptoolkit.telemetry import RunDirectory, RunStatus
from pptoolkit.telemetry.json_files import read_json
from pptoolkit.telemetry.settings import TelemetrySettings

# A rank that does not end by itself after its peer failed is killed after this time.
_SHUTDOWN_S = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """How a run on this machine ended without failing."""

    run: RunDirectory
    stopped: bool


def prepare(
    config: RunConfig,
    *,
    plan: Plan | None = None,
    ranks: int | None = None,
    run: str | os.PathLike[str] = "runs/run",
    command: tuple[str, ...] = (),
) -> tuple[Job, RunDirectory]:
    """Check everything that can be checked before a process starts, read the corpus, and make the run directory.

    Raises:
        InputError: Naming what does not fit.
    """
    TelemetrySettings.from_config(config.telemetry)
    job = make_job(config)
    checked = make_plan(job, config, plan=plan, ranks=ranks)
    optimisation = make_optimisation(config)  # what does not go together is refused here, before a process starts
    if config.plan.auto_rebalance:
        telemetry = config.telemetry
        check_rebalance(
            optimisation, replicas=checked.replicas, telemetry=telemetry.enabled, sample_layers_every=telemetry.sample_layers_every
        )
    count = ranks or checked.stages * checked.replicas
    check_launch(config.training.device, ranks=count, there=Accelerators.visible())
    setup = RunSetup(checked, layers=job.layer_names, ranks=count, seed=config.training.seed, accumulation=config.training.accumulation)
    if config.training.compile:
        check_compile(setup.schedule)
    # Read the data here too: only one process trains the vocabulary, and a missing or small corpus is found now.
    open_source(
        job.dataset(),
        batch_size=config.training.batch_size,
        micro_batches=checked.micro_batches * config.training.accumulation,
        replica=0,
        replicas=checked.replicas,
    )
    return job, setup.create(Path(run), config=config.model_dump(mode="json"), command=command)


def launch(run: RunDirectory) -> Launched:
    """Start the ranks of a prepared run and wait for them.

    Raises:
        TrainingError: If a rank failed or died, naming it, its stage and micro-batch, and the cause.
    """
    info = run.read_info()
    try:
        start_ranks(info.ranks, "pptoolkit.worker", str(run.path), run_id=info.run_id)
    except SignalException as caught:
        return _after_signal(run, caught.sigval)
    except ChildFailedError as failed:
        raise _explain(run, {rank: failure.exitcode for rank, failure in failed.failures.items()}) from None
    finally:
        _forget_endpoints(run)
    return Launched(run=run, stopped=run.read_info().status is RunStatus.STOPPED)


def start_ranks(ranks: int, module: str, *arguments: str, run_id: str) -> None:
    """Run ``python -m module arguments`` as ``ranks`` processes under torchrun's agent, and wait for them.

    Raises:
        ChildFailedError: If a rank failed.
        SignalException: If this process was asked to end.
    """
    _set_environment(ranks)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=run_id,
        rdzv_backend=loopback.BACKEND,
        rdzv_endpoint="127.0.0.1:0",
        max_restarts=0,
        monitor_interval=0.1,
        local_addr="127.0.0.1",
        shutdown_timeout=_SHUTDOWN_S,
    )
    loopback.register()
    _quiet_agent()
    elastic_launch(config, sys.executable)("-m", module, *arguments)


def _forget_endpoints(run: RunDirectory) -> None:
    """A rank that was killed could not say that its metrics are gone; Prometheus must not look for them."""
    with suppress(RunError):
        run.unregister_endpoint()


def _set_environment(ranks: int) -> None:
    """Give the workers their share of the cores and keep their connections on this machine; what the user set stays."""
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // ranks)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback.interface())


def _quiet_agent() -> None:
    """The agent reports a failure in forty lines and hides the cause; we report it ourselves."""
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)


def _after_signal(run: RunDirectory, number: signal.Signals) -> Launched:
    if run.read_info().status not in (RunStatus.STOPPED, RunStatus.FINISHED):
        # The ranks were ended in the middle of a step, or before the first one.
        run.update_info(status=RunStatus.STOPPED.value, message=f"stopped by {signal.Signals(number).name}")
    return Launched(run=run, stopped=True)


def _explain(run: RunDirectory, exit_codes: dict[int, int]) -> TrainingError:
    """Find the rank that failed first and say what happened there."""
    told = read_failures(run.path / "failures")
    causes = [failure for failure in told if not failure.victim]
    killed = {rank: code for rank, code in exit_codes.items() if code < 0 and code != -signal.SIGTERM}
    if causes:
        return _tell(run, causes[0])
    if killed:
        rank, code = min(killed.items())
        message = _describe_kill(run, rank, -code)
        mark_failed(run, message, rank=rank)
        return RankDiedError(message, run=run, failure=None)
    if told:
        return _tell(run, told[0])
    rank, code = min(exit_codes.items())
    message = f"rank {rank} ended with exit code {code} and told no reason; see {visible_path(run.log_path(rank))}"
    mark_failed(run, message, rank=rank)
    return RankDiedError(message, run=run, failure=None)


def _tell(run: RunDirectory, failure: RankFailure) -> TrainingError:
    message = failure.message if f"rank {failure.rank}" in failure.message else f"rank {failure.rank}: {failure.kind}: {failure.message}"
    mark_failed(run, message, rank=failure.rank)
    return RankDiedError(message, run=run, failure=failure)


def _describe_kill(run: RunDirectory, rank: int, number: int) -> str:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    doing = _last_words(run, rank)
    hint = "the kernel kills so when memory runs out: see dmesg" if number == signal.SIGKILL else f"see {visible_path(run.log_path(rank))}"
    return f"rank {rank} was killed by signal {number} ({name}){doing}; {hint}"


def _last_words(run: RunDirectory, rank: int) -> str:
    """What the rank's last heartbeat says it was doing."""
    beat = read_json(run.heartbeat_path(rank))
    stages = [stage for stage, owner in enumerate(run.read_info().stage_to_rank) if owner == rank]
    if not isinstance(beat, dict):
        return f", stage {stages[0]}, before its first step" if stages else ""
    where = [f"stage {beat['stage']}" if isinstance(beat.get("stage"), int) and beat["stage"] >= 0 else f"stage {stages[0]}"]
    if isinstance(beat.get("micro_batch"), int) and beat["micro_batch"] >= 0:
        where.append(f"micro-batch {beat['micro_batch']}")
    if isinstance(beat.get("step"), int):
        where.append(f"step {beat['step']}")
    during = f", during {str(beat['op']).lower()}" if beat.get("op") else ""
    return f", {', '.join(where)} (by its last heartbeat{during})"


class RankDiedError(TrainingError):
    """A run that failed, with what the rank itself left behind, if it could.

    Args:
        message: The one sentence to end with.
        run: The run, still readable.
        failure: The rank's own account, with its traceback.
    """

    def __init__(self, message: str, *, run: RunDirectory, failure: RankFailure | None) -> None:
        super().__init__(message)
        self.run, self.failure = run, failure
