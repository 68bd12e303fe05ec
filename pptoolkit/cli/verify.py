"""``pptoolkit verify``."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from pptoolkit.cli.screen import out
from pptoolkit.cli.train import plan_from
from pptoolkit.config import RunConfig
from pptoolkit.errors import counted
from pptoolkit.plan import Plan

if TYPE_CHECKING:
    from pptoolkit.verification import Verification


def verify(
    config: Annotated[Path, typer.Argument(help="Job file, e.g. examples/gpt.toml.")],
    plan: Annotated[Path | None, typer.Option(help="Plan to verify; default: the job file's [plan].")] = None,
    nproc: Annotated[int | None, typer.Option("--nproc", "-n", help="Ranks to start; default: one per stage and replica.")] = None,
    steps: Annotated[int, typer.Option(help="Steps to train.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Train a few steps under a plan and in one process, in float64, and show the largest difference of every layer.

    Exit code 0: all are below 1e-6 of the layer's own size; 1: one is not.
    """
    from pptoolkit.verify_launch import verify_job

    job = RunConfig.load(config)
    chosen = Plan.load(plan) if plan is not None else None
    with plan_from(plan or config):
        found = verify_job(job, plan=chosen, ranks=nproc, steps=steps)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show(found)
    return 0 if found.holds else 1


def show(found: "Verification") -> None:
    """Print the table and the verdict."""
    table = Table(box=None, pad_edge=False)
    for heading in ("layer", "gradient", "parameter"):
        table.add_column(heading, justify="left" if heading == "layer" else "right")
    for layer in found.layers:
        mark = "" if layer.first_step is None else "[bold red]"
        table.add_row(f"{mark}{layer.layer}", f"{mark}{layer.gradient:.1e}", f"{mark}{layer.parameter:.1e}")
    out.print(table)
    first = found.first_difference
    if first is None:
        out.print(
            f"loss {found.loss:.1e}: all differences are below {found.tolerance:.0e} "
            f"over {counted(found.steps, 'step')}; the plan changes nothing"
        )
    else:
        out.print(f"loss {found.loss:.1e}; the first difference above {found.tolerance:.0e}: {first[0]}, step {first[1]}", style="bold red")
