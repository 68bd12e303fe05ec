"""``pptoolkit simulate``: what a run's step would be with something changed."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from pptoolkit.cli.find import find_run
from pptoolkit.cli.read import JsonOption, RunArgument
from pptoolkit.cli.render import interval_ms
from pptoolkit.cli.screen import out
from pptoolkit.errors import InputError, RunError
from pptoolkit.plan import Plan
from pptoolkit.planner.what_if import Answer, WhatIf, what_if


def simulate(
    run: RunArgument = None,
    cuts: Annotated[str | None, typer.Option(help="Other cut points, e.g. 3,7.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Another schedule, e.g. zb-h1.")] = None,
    micro_batches: Annotated[int | None, typer.Option(help="Another number of micro-batches of the same batch.", min=1)] = None,
    replicas: Annotated[int | None, typer.Option(help="Another number of replicas on the same ranks.", min=1)] = None,
    recompute: Annotated[str | None, typer.Option(help="Stages that recompute their activations, e.g. 0,1.")] = None,
    link_factor: Annotated[float, typer.Option(help="How many times as fast the links are.")] = 1.0,
    slow_rank: Annotated[list[str] | None, typer.Option(help="RANK:FACTOR: a rank whose compute takes so many times as long.")] = None,
    plan: Annotated[Path | None, typer.Option(help="Take cuts, schedule, micro-batches and recompute from a plan file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict a run's step under another plan, faster links or a slower rank, from what it measured."""
    opened = find_run(run)
    measured = opened.measured_step()
    if measured is None:
        raise RunError(f"run {opened.info.run_id} has nothing to simulate from: {'; '.join(opened.report().missing)}")
    given = Plan.load(plan) if plan is not None else None
    change = WhatIf(
        cuts=numbers(cuts, "--cuts") if cuts is not None else given.cuts if given else None,
        schedule=schedule or (given.schedule if given else None),
        micro_batches=micro_batches or (given.micro_batches if given else None),
        replicas=replicas or (given.replicas if given else None),
        recompute=numbers(recompute, "--recompute") if recompute is not None else given.recompute if given else None,
        link_factor=link_factor,
        slow_ranks=dict(_slow(text) for text in slow_rank or ()),
    )
    answer = what_if(measured, change)
    typer.echo(json.dumps(answer.to_dict(), indent=2)) if as_json else out.print(shown(answer))


def shown(answer: Answer) -> Group:
    """Return an answer as text."""
    step, plan = answer.step, answer.plan
    again = f", recompute {list(plan.recompute)}" if plan.recompute else ""
    lines = [
        Text.assemble(
            (f"cuts {list(plan.cuts)}, {plan.schedule}, {plan.micro_batches} micro-batches{again}", "bold"),
            f": {interval_ms(step.step_time_s, step.low_s, step.high_s)} a step, bubble {step.bubble_ratio:.1%}",
        ),
        Text(
            f"measured step of the run {answer.measured_step_s * 1e3:.1f} ms: {abs(step.gain_ratio):.1%} "
            f"{'less' if step.gain_ratio >= 0 else 'more'} ({step.gain_low_ratio:+.1%} to {step.gain_high_ratio:+.1%} gain); "
            f"the replay of the run is off by {answer.replay_error_ratio:+.1%}"
        ),
    ]
    if step.memory_bytes:
        lines.append(Text("memory a rank: " + ", ".join(f"{size / 2**20:,.0f} MiB" for size in step.memory_bytes)))
    lines += [Text(f"assumed: {sentence}", style="dim") for sentence in answer.assumptions]
    return Group(*lines)


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Read a list of whole numbers, e.g. ``3,7``.

    Raises:
        InputError: If it is none.
    """
    try:
        return tuple(int(word) for word in text.replace(" ", "").split(",") if word)
    except ValueError as error:
        raise InputError(f"{option} {text!r} is no list of whole numbers; write e.g. {option} 3,7") from error


def _slow(text: str) -> tuple[int, float]:
    rank, _, factor = text.partition(":")
    try:
        return int(rank), float(factor)
    except ValueError as error:
        raise InputError(f"--slow-rank {text!r} is not RANK:FACTOR; write e.g. --slow-rank 1:1.5") from error
