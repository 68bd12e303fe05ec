"""``pptoolkit collect``: a local copy of a run whose ranks are on other machines."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.screen import out
from pptoolkit.errors import counted
from pptoolkit.telemetry import RunDirectory
from pptoolkit.telemetry.collector import Collector
from pptoolkit.telemetry.endpoint_client import EndpointClient, EndpointError, base_url
from pptoolkit.telemetry.security import ClientCredentials, read_token

TOKEN_VARIABLE = "PPTOOLKIT_TOKEN"


def collect(
    url: Annotated[str, typer.Argument(metavar="URL", help="Endpoint of rank 0, e.g. http://node0:9100; the others are found through it.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Local run directory; default: runs/<run id>.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Copy what is there now, and end.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.05)] = 1.0,
    patience: Annotated[
        float, typer.Option(help="Give up after so many seconds without an answer from any rank, also before the first.", min=0)
    ] = 30.0,
    token_file: Annotated[Path | None, typer.Option(help=f"File with the bearer token; default: {TOKEN_VARIABLE} where it is set.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA of the ranks' certificates (PEM); default: the system's.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Own certificate (PEM), where the ranks ask for one.")] = None,
    key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
) -> int:
    """Copy a run from its ranks into a local run directory, live, until it ends; started again, it goes on where it was.

    Dashboard, report and every other command read the copy like any run.
    """
    credentials = ClientCredentials(
        token=read_token(file=str(token_file or ""), variable=TOKEN_VARIABLE if TOKEN_VARIABLE in os.environ else "", where="collect"),
        ca=str(ca or ""),
        cert=str(cert or ""),
        key=str(key or ""),
    )
    collector = Collector(base_url(url), EndpointClient(credentials))
    run = _open(collector, output, patience_s=0.0 if once else patience)
    out.print(
        f"collecting run {escape(collector.info.run_id)} ({counted(collector.info.ranks, 'rank')}) into [bold]{escape(str(run.path))}[/]",
        soft_wrap=True,
    )
    return _follow(collector, run.path, once=once, interval_s=interval, patience_s=patience)


def _open(collector: Collector, output: Path | None, *, patience_s: float) -> RunDirectory:
    """Open the copy; a run that is only about to start is waited for."""
    deadline = time.monotonic() + patience_s
    told = False
    while True:
        try:
            return collector.open(output)
        except EndpointError as error:
            if error.refused or time.monotonic() > deadline:
                raise
            if not told:
                out.print(f"waiting for rank 0: {escape(str(error))}", style="yellow", soft_wrap=True)
                told = True
            time.sleep(0.5)


def _follow(collector: Collector, path: Path, *, once: bool, interval_s: float, patience_s: float) -> int:
    total, heard_s = 0, time.monotonic()
    while True:
        found = collector.poll()
        total += found.bytes
        for note in found.notes:
            out.print(f"note: {escape(note)}", style="yellow", soft_wrap=True)
        if not collector.silent:
            heard_s = time.monotonic()
        if collector.complete or once:
            return _end(
                collector, path, total, missing=[copy.rank for copy in collector.ranks if copy.reachable is False and not copy.ended]
            )
        if time.monotonic() - heard_s > patience_s:
            out.print(f"no rank that is still expected has answered for {patience_s:.0f} s", style="yellow")
            return _end(collector, path, total, missing=[copy.rank for copy in collector.ranks if not copy.ended])
        time.sleep(interval_s)


def _end(collector: Collector, path: Path, total: int, *, missing: list[int]) -> int:
    absent = sorted({*missing, *(set(range(collector.info.ranks)) - {copy.rank for copy in collector.ranks})})
    how = f"; not all of rank {', '.join(map(str, absent))}" if absent else ""
    out.print(
        f"{collector.info.status.value}: collected {total:,} bytes{how}; see it with: pptoolkit report {escape(str(path))}", soft_wrap=True
    )
    return 1 if absent else 0
