"""``pptoolkit export``: a run for other people and other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.analysis.exports import write_csv, write_parquet, write_perfetto
from pptoolkit.cli.find import find_run
from pptoolkit.cli.screen import out
from pptoolkit.errors import RunError
from pptoolkit.run import Run


class Format(StrEnum):
    """What a run can be written as."""

    HTML = "html"
    CSV = "csv"
    PARQUET = "parquet"
    PERFETTO = "perfetto"


_ENDINGS = {Format.HTML: ".html", Format.CSV: ".csv", Format.PARQUET: ".parquet", Format.PERFETTO: ".perfetto.json"}


def export(
    run: Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Run directory, or a name below runs/; default: the latest.")] = None,
    to: Annotated[Format, typer.Option(help="html: one file to read; csv, parquet: the events; perfetto: a trace.")] = Format.HTML,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Where to; default: the run's name, here.")] = None,
) -> None:
    """Write a run to one file: a page with timeline and report, a table of events, or a trace."""
    opened = find_run(run)
    path = output or Path(opened.directory.path.resolve().name + _ENDINGS[to])
    export_run(opened, to, path)
    out.print(f"wrote [bold]{escape(str(path))}[/] ({path.stat().st_size / 1024:,.0f} KiB)", soft_wrap=True)
    if to is Format.PERFETTO:
        out.print("open it at ui.perfetto.dev, which reads it in the browser without sending it anywhere", soft_wrap=True)


def export_run(run: Run, to: Format, path: Path) -> None:
    """Write ``run`` as ``to``.

    Raises:
        RunError: If the run has no events, or the file cannot be written.
    """
    if to is Format.HTML:
        from dashboard.page_file import write_page

        write_page(run, path)
        return
    timeline = run.timeline()
    if timeline.empty:
        raise RunError(f"run {run.info.run_id} has no events yet, so there is nothing to write; train a step first")
    if to is Format.PERFETTO:
        write_perfetto(timeline, path, name=run.info.run_id)
    elif to is Format.CSV:
        write_csv(timeline, path)
    else:
        write_parquet(timeline, path)
