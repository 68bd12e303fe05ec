"""``pptoolkit prometheus config`` and ``pptoolkit grafana push``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.find import RUNS
from pptoolkit.cli.screen import out
from pptoolkit.errors import ConfigError
from pptoolkit.monitoring.scrape_config import PROMETHEUS_PORT, ScrapeConfig

prometheus = typer.Typer(name="prometheus", help="Scrape runs with Prometheus.", no_args_is_help=True, rich_markup_mode=None)


@prometheus.callback()
def _prometheus() -> None:
    """Scrape runs with Prometheus."""


@prometheus.command("config")
def prometheus_config(
    runs: Annotated[Path | None, typer.Option(help="Folder of runs to watch; default: runs, unless --sd is given.")] = None,
    sd: Annotated[list[str] | None, typer.Option(help="Rank 0's service discovery, e.g. http://host:9100/sd; may be repeated.")] = None,
    pushgateway: Annotated[str | None, typer.Option(help="Also scrape a Pushgateway, e.g. http://127.0.0.1:9091.")] = None,
    rules: Annotated[Path | None, typer.Option(help="Rule file; default: the packaged one.")] = None,
    interval: Annotated[int, typer.Option(help="Seconds between scrapes.", min=1, max=60)] = 5,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of printing.")] = None,
) -> None:
    """Print a prometheus.yml that scrapes every rank of every run, with the alert rules."""
    from grafana import RULES

    watched = RUNS if runs is None and not sd else runs
    if rules is not None and not rules.is_file():
        raise ConfigError(f"there is no rule file at {rules}; leave --rules out to use the packaged one")
    config = ScrapeConfig(
        # Prometheus reads relative paths from where its configuration lies, which is not where this command runs.
        runs=watched.absolute() if watched is not None else None,
        discovery=tuple(sd or ()),
        rules=((rules or RULES).absolute(),),
        pushgateway=pushgateway,
        interval_s=interval,
    )
    if output is None:
        typer.echo(config.render(), nl=False)
        return
    try:
        output.write_text(config.render())
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error.strerror or error}; choose another file with -o") from error
    out.print(f"wrote [bold]{escape(str(output))}[/]; check it with: promtool check config {escape(str(output))}", soft_wrap=True)
    start = f"prometheus --config.file={output} --web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"
    out.print(f"next: {escape(start)}", soft_wrap=True)
