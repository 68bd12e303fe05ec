"""One rank of ``pptoolkit train``: ``python -m pptoolkit.worker RUN``, started by the launcher under torchrun's environment."""

import os
import sys
import threading
import time
from pathlib import Path

from pptoolkit.config import RunConfig
from pptoolkit.errors import PPToolkitError
from pptoolkit.failure import RankFailure, write_failure
from pptoolkit.plan import Plan
from pptoolkit.planner.rebalance import AutoRebalance
from pptoolkit.telemetry import RunDirectory
from pptoolkit.telemetry.settings import TelemetrySettings


def main() -> None:
    """Train the run's job as the rank that the environment says; a failure is left in a file for the launcher."""
    run = RunDirectory(sys.argv[1])
    rank = int(os.environ["RANK"])
    _exit_with(os.getppid())
    if rank != 0:
        _write_to(run.log_path(rank))
    try:
        _train(run)
    except BaseException as error:
        # The trainer has told of its own failures; this one may have come before there was a trainer.
        if not (run.path / "failures" / f"rank-{rank:05d}.json").exists():
            write_failure(run.path / "failures", RankFailure.of(error, rank=rank))
        sys.stdout.flush()
        sys.stderr.flush()
        # Without the interpreter's exit handlers: they may wait for ranks that are gone.
        os._exit(error.exit_code if isinstance(error, PPToolkitError) else 1)


def _train(run: RunDirectory) -> None:
    from pptoolkit.job import make_job
    from pptoolkit.job_settings import make_optimisation
    from pptoolkit.trainer import Trainer

    config = RunConfig.from_dict(run.read_info().config, where=str(run.info_path))
    job = make_job(config)
    telemetry = TelemetrySettings.from_config(config.telemetry)
    with Trainer(
        job.layers,
        loss=job.loss,
        optimizer=job.make_optimizer(config),
        plan=Plan.load(run.plan_path),
        run=run,
        seed=config.training.seed,
        optimisation=make_optimisation(config),
        telemetry=telemetry,
        sample_layers_every=config.telemetry.sample_layers_every,
        auto_rebalance=AutoRebalance(every=config.plan.rebalance_every) if config.plan.auto_rebalance else False,
        device=config.training.device,
    ) as trainer:
        if trainer.world.rank == 0 and trainer.telemetry.metrics_url is not None:
            print(f"  metrics: {trainer.telemetry.metrics_url} (rank 0; every rank: {run.discovery_path})", flush=True)
        trainer.fit(job.dataset(), batch_size=config.training.batch_size, steps=config.training.steps)


def _write_to(path: Path) -> None:
    """Send what this rank prints to its log: the terminal belongs to rank 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _exit_with(parent: int) -> None:
    """Leave no process behind when the launcher itself is killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="pptoolkit-parent-watch", daemon=True).start()


if __name__ == "__main__":
    main()
