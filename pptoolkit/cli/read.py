"""``report``, ``apply`` and ``compare``: what a run tells. None of them needs torch."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from pptoolkit.cli import render
from pptoolkit.cli.find import find_run
from pptoolkit.cli.screen import out
from pptoolkit.errors import PlanError, RunError
from pptoolkit.plan_history import PlanHistory
from pptoolkit.planner.compare import compare as compare_runs
from pptoolkit.run import Run

RunArgument = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="Run directory, or a name below runs/; default: the latest.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print stable JSON instead of tables.")]


def report(run: RunArgument = None, as_json: JsonOption = False) -> None:
    """Show a run: step time, bubbles, stages, where the time went, and the bottleneck."""
    found = find_run(run).report()
    show_json(found.to_dict()) if as_json else out.print(render.report(found))


def apply(
    run: RunArgument = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write the plan.")] = Path("plan.toml"),
    number: Annotated[int, typer.Option(help="Which suggestion, 1 being the best.", min=1)] = 1,
) -> None:
    """Write a suggested plan for the next run. Without a suggestion nothing is written, and the exit code is 1."""
    opened = find_run(run)
    found = saved_suggestions(opened)
    if not len(found):
        reason = found.no_change.reason if found.no_change else "nothing is suggested"
        out.print(f"no change: {escape(reason)}", soft_wrap=True)
        raise typer.Exit(1)
    if number > len(found):
        raise PlanError(f"there is no suggestion {number}; run {opened.info.run_id} has {len(found)}")
    chosen = found[number - 1]
    written = PlanHistory(output).save(chosen.plan)
    out.print(f"wrote [bold]{escape(str(written))}[/]: cuts {list(chosen.plan.cuts)}; {escape(chosen.sentence)}", soft_wrap=True)
    out.print(f"predicted step time {render.interval_ms(chosen.step_time_s, chosen.low_s, chosen.high_s)}, {chosen.gain_ratio:.0%} less")
    out.print(f"next: {escape(next_command(opened.info.command, written))}", soft_wrap=True)


def compare(
    before: Annotated[Path, typer.Argument(help="The earlier run.")],
    after: Annotated[Path, typer.Argument(help="The later run.")],
    as_json: JsonOption = False,
) -> None:
    """Compare two runs: step time, predicted beside achieved, losses, where the time went."""
    found = compare_runs(find_run(before), find_run(after))
    show_json(found.to_dict()) if as_json else out.print(render.comparison(found))


def next_command(command: tuple[str, ...], plan: Path) -> str:
    """Return the command that trains with ``plan``, from the command that made the run: the plan and the run's place replaced."""
    if "train" not in command:
        return f"pptoolkit train CONFIG --plan {plan}"
    words, skip = [], False
    for word in command[command.index("train") + 1 :]:
        if skip or word in ("--plan", "--run"):
            skip = not skip
            continue
        if not word.startswith(("--plan=", "--run=")):
            words.append(word)
    return " ".join(["pptoolkit train", *words, "--plan", str(plan)])


def saved_suggestions(run: Run) -> Any:
    """Return a run's suggestions, and leave them in its directory where that can be written."""
    try:
        return run.save_suggestions()
    except RunError:
        return run.suggest()  # a read-only run can still be read


def show_json(body: dict[str, Any]) -> None:
    """Print the stable JSON form."""
    typer.echo(json.dumps(body, indent=2))
