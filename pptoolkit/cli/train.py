"""``pptoolkit train``."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.screen import out
from pptoolkit.config import RunConfig
from pptoolkit.errors import PlanError, counted
from pptoolkit.plan import Plan

if TYPE_CHECKING:
    from pptoolkit.launch import Launched


def train(
    config: Annotated[Path, typer.Argument(help="Job file, e.g. examples/gpt.toml.")],
    nproc: Annotated[int | None, typer.Option("--nproc", "-n", help="Ranks to start; default: one per stage of the plan.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Plan file as written by apply; it wins over the job file's [plan].")] = None,
    run: Annotated[Path | None, typer.Option(help="Run directory; default: runs/<job name>, numbered when taken.")] = None,
    steps: Annotated[int | None, typer.Option(help="Train so many steps instead of the job file's number.")] = None,
    auto_rebalance: Annotated[bool, typer.Option("--auto-rebalance", help="Cut anew while training, where that pays.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto: where to train, instead of the job file's device.")] = None,
) -> int:
    """Train a job on this machine with telemetry, and leave a run directory behind."""
    job = RunConfig.load(config)
    if steps is not None:
        job = RunConfig.from_dict({**job.model_dump(), "training": {**job.training.model_dump(), "steps": steps}}, where="--steps")
    if device is not None:
        job = RunConfig.from_dict({**job.model_dump(), "training": {**job.training.model_dump(), "device": device}}, where="--device")
    if auto_rebalance:
        job = job.model_copy(update={"plan": job.plan.model_copy(update={"auto_rebalance": True})})
    chosen = Plan.load(plan) if plan is not None else None
    outcome = train_job(
        job, plan=chosen, nproc=nproc, run=run or Path("runs") / config.stem, command=tuple(sys.argv), source=plan or config
    )
    return 130 if outcome.stopped else 0


@contextmanager
def plan_from(source: Path | None) -> Iterator[None]:
    """Name the file, where there is one, in what is wrong with its plan."""
    try:
        yield
    except PlanError as error:
        raise error if source is None else PlanError(f"{source}: {error}") from error


def train_job(
    job: RunConfig, *, plan: Plan | None, nproc: int | None, run: Path, command: tuple[str, ...] = (), source: Path | None = None
) -> "Launched":
    """Prepare, say what will run, launch, and say where it is; ``source`` is the file that the plan comes from."""
    with out.status("reading the corpus"), plan_from(source):
        from pptoolkit.launch import launch, prepare

        _, directory = prepare(job, plan=plan, ranks=nproc, run=run, command=command)
    info = directory.read_info()
    parts = info.read_plan().stage_layers(len(info.layers))
    out.print(
        f"[bold]run {escape(str(directory.path))}[/]: {counted(len(info.layers), 'layer')} on {counted(info.ranks, 'rank')}, "
        f"{info.schedule}, {info.micro_batches} micro-batches",
        soft_wrap=True,
    )
    for stage, part in enumerate(parts):
        names = f"{info.layers[part.start]} to {info.layers[part[-1]]} ({counted(len(part), 'layer')})"
        out.print(f"  stage {stage} (rank {info.stage_to_rank[stage]}): {escape(names)}", soft_wrap=True)
    outcome = launch(directory)
    ended = directory.read_info()
    how, status = ended.message or counted(ended.steps, "step"), ended.status.value
    told = how if how.startswith(status) else f"{status}: {how}"
    out.print(f"{escape(told)}; see it with: pptoolkit report {escape(str(directory.path))}", soft_wrap=True)
    return outcome
