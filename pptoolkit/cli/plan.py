"""``pptoolkit suggest``: better plans from a run, or from a profile before there is one."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli import render
from pptoolkit.cli.find import find_run
from pptoolkit.cli.read import JsonOption, RunArgument, saved_suggestions, show_json
from pptoolkit.cli.screen import out
from pptoolkit.cli.simulate import numbers
from pptoolkit.errors import InputError
from pptoolkit.plan_history import PlanHistory
from pptoolkit.planner.cost_profile import CostProfile
from pptoolkit.planner.search import DEFAULT_SCHEDULES, SearchSpace
from pptoolkit.planner.suggest import suggest as suggest_plans
from pptoolkit.planner.suggestion import Suggestions
from pptoolkit.telemetry import RunInfo

_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def suggest(
    run: RunArgument = None,
    search: Annotated[bool, typer.Option("--search", help="Search schedule, micro-batches and recompute too, not only the cuts.")] = False,
    memory_limit: Annotated[str | None, typer.Option(help="Memory a rank may use, e.g. 16GiB; implies --search.")] = None,
    schedules: Annotated[str | None, typer.Option(help="Schedules to try, e.g. 1f1b,zb-h1; implies --search.")] = None,
    replicas: Annotated[str | None, typer.Option(help="Numbers of replicas to try, e.g. 1,2; implies --search.")] = None,
    micro_batches: Annotated[str | None, typer.Option(help="Numbers of micro-batches to try, e.g. 8,16; implies --search.")] = None,
    profile: Annotated[Path | None, typer.Option(help="Plan from a profile instead of a run.")] = None,
    ranks: Annotated[int, typer.Option(help="With --profile: how many ranks there are.", min=1)] = 2,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the best plan there.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Suggest better plans from measured layer costs, or say why none are."""
    space = None
    if search or profile or any(option is not None for option in (memory_limit, schedules, replicas, micro_batches)):
        space = SearchSpace(
            schedules=tuple(name.strip() for name in schedules.split(",")) if schedules is not None else DEFAULT_SCHEDULES,
            replicas=numbers(replicas, "--replicas") if replicas else (),
            micro_batches=numbers(micro_batches, "--micro-batches") if micro_batches else (),
            memory_limit_bytes=parse_bytes(memory_limit) if memory_limit else None,
        )
    if profile is not None:
        assert space is not None, "a profile always searches"
        found, layers, where = *from_profile(CostProfile.load(profile), space, ranks=ranks), ""
    else:
        opened = find_run(run)
        found = saved_suggestions(opened) if space is None else opened.suggest(space)
        layers, where = opened.info.layers, str(opened.directory.path)
    if as_json:
        show_json(found.to_dict())
    else:
        out.print(render.suggestions(found, layers, apply_from=where if space is None else ""))
    if output is not None and len(found):
        out.print(f"wrote {escape(str(PlanHistory(output).save(found[0].plan)))}", soft_wrap=True) if not as_json else PlanHistory(
            output
        ).save(found[0].plan)


def from_profile(profile: CostProfile, space: SearchSpace, *, ranks: int) -> tuple[Suggestions, tuple[str, ...]]:
    """Return the suggestions for a profiled model on so many ranks, beside the equal-layer cut, and its layers."""
    divisors = [m for m in range(1, profile.batch_size + 1) if profile.batch_size % m == 0]
    # Two micro-batches a rank, as the trainer takes where nothing is said.
    start = max((m for m in divisors if m <= 2 * ranks), default=1)
    measured = profile.measured_step(ranks=ranks, micro_batches=start)
    names = tuple(layer.name for layer in profile.layers)
    info = RunInfo(run_id=profile.name, layers=names, fingerprint=profile.fingerprint, plan=measured.plan.to_dict(), ranks=ranks)
    sizes = space.micro_batches or tuple(m for m in divisors if ranks // 2 <= m <= 16 * ranks)
    return suggest_plans(measured, info, space=replace(space, micro_batches=sizes)), names


def parse_bytes(text: str) -> int:
    """Read a size such as ``16GiB``, ``500M`` or ``1000000``.

    Raises:
        InputError: If it is none.
    """
    match = re.fullmatch(r"([0-9.]+) *([kmgt]?)(i?b)?", text.strip().lower())
    if match is None or match[1].count(".") > 1 or match[1] == ".":
        raise InputError(f"{text!r} is no size; write e.g. 16GiB, 500MiB or a number of bytes")
    return int(float(match[1]) * _UNITS[match[2]])
