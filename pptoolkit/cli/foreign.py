"""``pptoolkit import``: a run of another trainer as one of ours."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.find import RUNS
from pptoolkit.cli.screen import out
from pptoolkit.errors import counted
from pptoolkit.foreign import import_trace


def import_run(
    trace: Annotated[Path, typer.Argument(help="Trace of a pipeline-parallel job: parquet or CSV, one row an op.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Run directory to write; default: runs/<name of the trace>.")
    ] = None,
    schedule: Annotated[str | None, typer.Option(help="What the job ran, e.g. 1f1b; default: seen from the order of its ops.")] = None,
) -> None:
    """Read a production trace as a run that every command and page can show."""
    run = import_trace(trace, output or RUNS / trace.stem, schedule=schedule)
    info = run.read_info()
    where = escape(str(run.path))
    out.print(
        f"[bold]run {where}[/]: {counted(info.steps, 'step')} of {counted(info.ranks, 'rank')} "
        f"in {counted(info.replicas, 'replica')}; {counted(info.stages, 'stage')}, "
        f"{escape(info.schedule)}, {info.micro_batches} micro-batches",
        soft_wrap=True,
    )
    out.print(f"see it with: pptoolkit report {where}", soft_wrap=True)
