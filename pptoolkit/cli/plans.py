"""``plans`` and ``layout``: a project's plans one after the other, and the layouts of other trainers."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.read import JsonOption
from pptoolkit.cli.screen import out
from pptoolkit.errors import InputError
from pptoolkit.layouts import LayoutStyle, read_layout, write_layout
from pptoolkit.plan import Plan
from pptoolkit.plan_history import PlanHistory


def plans(
    path: Annotated[Path, typer.Argument(help="The plan file.")] = Path("plan.toml"),
    back: Annotated[bool, typer.Option("--back", help="Go back to the plan before.")] = False,
    to: Annotated[int | None, typer.Option(help="Go back to the plan of this number.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the plans that were in a file one after the other, or go back to an earlier one."""
    history = PlanHistory(path)
    if back or to is not None:
        plan = history.roll_back(to)
        out.print(f"{escape(str(path))} is back at cuts {escape(str(list(plan.cuts)))}, {escape(plan.schedule)}", soft_wrap=True)
        return
    entries = history.entries()
    if as_json:
        rows = [{"number": e.number, "current": e.current, "written_unix_s": e.written_unix_s, "plan": e.plan.to_dict()} for e in entries]
        typer.echo(json.dumps(rows, indent=2))
        return
    if not entries:
        raise InputError(f"there is no plan at {path}; write one with: pptoolkit apply RUN -o {path}")
    for entry in entries:
        plan = entry.plan
        origin = f", from run {plan.origin.run}" if plan.origin else ""
        promise = f", predicted {plan.prediction.step_time_s * 1e3:.1f} ms" if plan.prediction else ""
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.written_unix_s))
        mark = "*" if entry.current else " "
        line = f"{mark} {entry.number}  {when}  cuts {list(plan.cuts)}, {plan.schedule}, {plan.micro_batches} micro-batches"
        out.print(escape(f"{line}{origin}{promise}"), soft_wrap=True)


def layout(
    source: Annotated[str, typer.Argument(help="A layout, e.g. 'balance=[3,3,2]' or 'Et*3|t*3|t*2L', or a plan file.")],
    to: Annotated[LayoutStyle | None, typer.Option(help="Write it in this trainer's way.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the model; needed for a plan file.", min=1)] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write it as a plan.")] = None,
) -> None:
    """Read and write the stage layouts of DeepSpeed, torchgpipe, FairScale and Megatron."""
    if source.endswith(".toml"):
        plan = Plan.load(source)
        if layers is None:
            raise InputError("a plan file does not say how many layers the model has; add --layers N")
        plan.check(layers)
        cuts, count = plan.cuts, layers
    else:
        cuts, count = read_layout(source)
        if layers is not None and layers != count:
            raise InputError(f"the layout {source!r} has {count} layers, and --layers says {layers}; correct one of them")
        plan = Plan(cuts=cuts)
    if output is not None:
        PlanHistory(output).save(plan)
        out.print(f"wrote {escape(str(output))}: {count} layers, cuts {list(cuts)}", soft_wrap=True)
    elif to is not None:
        typer.echo(write_layout(cuts, count, to))
    else:
        typer.echo(f"{count} layers, cuts {list(cuts)}")
