"""Verifying a job's plan on this machine: the ranks are started, compare themselves with one process, and answer in a file."""

import json
import tempfile
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from pptoolkit.config import RunConfig
from pptoolkit.engine.compiled import check_compile
from pptoolkit.engine.device import Accelerators, check_launch
from pptoolkit.errors import TrainingError
from pptoolkit.failure import read_failures
from pptoolkit.job import make_job, make_plan
from pptoolkit.job_settings import make_optimisation
from pptoolkit.launch import start_ranks
from pptoolkit.plan import Plan
from pptoolkit.schedule import build_schedule
from pptoolkit.verification import Verification


def verify_job(config: RunConfig, *, plan: Plan | None = None, ranks: int | None = None, steps: int = 3) -> Verification:
    """Train a few steps of ``config`` under ``plan`` and in one process, in float64, and compare.

    Args:
        config: The job.
        plan: What to verify; None: the job file's own plan.
        ranks: Processes to start; None: one for each stage and replica.
        steps: Steps to train.

    Raises:
        InputError: Naming what does not fit, before a process starts.
        TrainingError: If a rank fails.
    """
    job = make_job(config)
    checked = make_plan(job, config, plan=plan, ranks=ranks)
    count = ranks or checked.stages * checked.replicas
    check_launch(config.training.device, ranks=count, there=Accelerators.visible())
    schedule = build_schedule(
        checked.schedule, ranks=checked.pipeline_ranks(count), stages=checked.stages, micro_batches=checked.micro_batches
    )
    make_optimisation(config)
    if config.training.compile:
        check_compile(schedule)
    job.dataset()  # so that only one process trains the vocabulary
    with tempfile.TemporaryDirectory(prefix="pptoolkit-verify-") as name:
        folder = Path(name)
        request = {"config": config.model_dump(mode="json"), "plan": checked.to_dict(), "steps": steps}
        (folder / "request.json").write_text(json.dumps(request))
        try:
            start_ranks(count, "pptoolkit.verify_worker", str(folder), run_id="verify")
        except ChildFailedError as failed:
            raise _explain(folder, failed) from None
        return Verification.from_dict(json.loads((folder / "answer.json").read_text()))


def _explain(folder: Path, failed: ChildFailedError) -> TrainingError:
    told = read_failures(folder / "failures")
    if told:
        return TrainingError(f"rank {told[0].rank}: {told[0].kind}: {told[0].message}")
    rank, failure = min(failed.failures.items())
    return TrainingError(f"rank {rank} ended with exit code {failure.exitcode} and told no reason")
