"""``pptoolkit prometheus config`` and ``pptoolkit grafana push``."""

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.find import RUNS
from pptoolkit.cli.screen import out
from pptoolkit.errors import ConfigError
from pptoolkit.monitoring.grafana_push import Change, Outcome, load_dashboards, push_dashboard, push_data_source, push_folder
from pptoolkit.monitoring.grafana_server import DEFAULT_URL, Credentials, GrafanaServer
from pptoolkit.monitoring.run_events import push_events
from pptoolkit.monitoring.scrape_config import PROMETHEUS_PORT, ScrapeConfig
from pptoolkit.telemetry import list_runs
from pptoolkit.telemetry.settings import is_http_url

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
    token_file: Annotated[Path | None, typer.Option(help="File with the token that the ranks ask for.")] = None,
    ca: Annotated[Path | None, typer.Option(help="PEM file that the ranks' certificates are checked against.")] = None,
    cert: Annotated[Path | None, typer.Option(help="PEM file: the certificate that Prometheus shows to the ranks.")] = None,
    key: Annotated[Path | None, typer.Option(help="PEM file: its private key.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to this file instead of printing.")] = None,
) -> None:
    """Print a prometheus.yml that scrapes every rank of every run, with the alert rules."""
    from grafana import RULES

    watched = RUNS if runs is None and not sd else runs
    if rules is not None and not rules.is_file():
        raise ConfigError(f"there is no rule file at {rules}; leave --rules out to use the packaged one")

    def found_anywhere(path: Path | None) -> Path | None:
        # Prometheus reads relative paths from where its configuration lies, which is not where this command runs.
        return path.absolute() if path is not None else None

    config = ScrapeConfig(
        runs=found_anywhere(watched),
        discovery=tuple(sd or ()),
        rules=((rules or RULES).absolute(),),
        pushgateway=pushgateway,
        interval_s=interval,
        token_file=found_anywhere(token_file),
        ca=found_anywhere(ca),
        cert=found_anywhere(cert),
        key=found_anywhere(key),
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


grafana = typer.Typer(name="grafana", help="Show runs in Grafana.", no_args_is_help=True, rich_markup_mode=None)


@grafana.callback()
def _grafana() -> None:
    """Show runs in Grafana."""


@grafana.command("push")
def grafana_push(
    url: Annotated[str, typer.Option(help="Address of Grafana.")] = DEFAULT_URL,
    folder: Annotated[str | None, typer.Option(help="Title of the folder; a folder pushed before is renamed. Default: pptoolkit.")] = None,
    datasource: Annotated[
        str | None, typer.Option(help="Address of Prometheus as Grafana reaches it; default for a new one: http://localhost:9090.")
    ] = None,
    no_datasource: Annotated[bool, typer.Option("--no-datasource", help="Leave data sources alone: they need the role Admin.")] = False,
    runs: Annotated[Path, typer.Option(help="Folder of runs, or one run, whose events become annotations.")] = RUNS,
    no_annotations: Annotated[bool, typer.Option("--no-annotations", help="Leave annotations alone.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace dashboards that were changed in Grafana.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for an answer.", min=0.1, max=300)] = 10.0,
) -> int:
    """Create or update folder, data source, dashboards and annotations. Again is the same as once; credentials: GRAFANA_TOKEN.

    Without a token: GRAFANA_USER and GRAFANA_PASSWORD. Exit code 1 when something was kept although it differs.
    """
    from grafana import DASHBOARDS

    if datasource is not None and not is_http_url(datasource):
        raise ConfigError(f"--datasource {datasource!r} is no address of Prometheus; write it like http://localhost:{PROMETHEUS_PORT}")
    server = GrafanaServer(url, Credentials.from_environment(os.environ), timeout_s=timeout)
    boards = load_dashboards(DASHBOARDS)
    folder_uid, change = push_folder(server, folder)
    changes = [_tell(change)]
    if not no_datasource:
        changes.append(_tell(push_data_source(server, datasource)))
    changes += [_tell(push_dashboard(server, board, folder_uid=folder_uid, overwrite=overwrite)) for board in boards]
    if not no_annotations:
        changes += [_tell(change) for change in push_events(server, list_runs(runs))]
    out.print(f"look at it: {escape(server.url)}/d/pptoolkit-run", soft_wrap=True)
    return 1 if any(change.outcome is Outcome.KEPT for change in changes) else 0


def _tell(change: Change) -> Change:
    note = f" ({escape(change.note)})" if change.note else ""
    style = "yellow" if change.outcome is Outcome.KEPT else "bold"
    out.print(f"{escape(change.subject)}: [{style}]{change.outcome}[/]{note}", soft_wrap=True)
    return change
