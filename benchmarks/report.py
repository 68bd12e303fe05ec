"""What every benchmark shares on the outside: its options, its results, a table for people and JSON for programs."""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.paired import Estimate
from pptoolkit.errors import PPToolkitError


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured number; ``goal`` is a sentence and ``holds`` its verdict, both None where nothing was promised."""

    name: str
    value: float
    low: float
    high: float
    unit: str
    goal: str | None = None
    holds: bool | None = None


def measured(name: str, estimate: Estimate, unit: str) -> Result:
    """Return a result that promises nothing."""
    return Result(name=name, value=estimate.value, low=estimate.low, high=estimate.high, unit=unit)


def at_most(name: str, estimate: Estimate, unit: str, *, goal: float) -> Result:
    """Return a result whose interval must end at ``goal`` or below: a median that looks good by chance does not count."""
    text = f"upper bound <= {goal:g}{f' {unit}' if unit else ''}"
    return Result(name=name, value=estimate.value, low=estimate.low, high=estimate.high, unit=unit, goal=text, holds=estimate.high <= goal)


def within(name: str, estimate: Estimate, unit: str, *, goal: float) -> Result:
    """Return a result whose whole interval must lie between ``-goal`` and ``goal``."""
    text = f"within +-{goal:g}{f' {unit}' if unit else ''}"
    holds = -goal <= estimate.low and estimate.high <= goal
    return Result(name=name, value=estimate.value, low=estimate.low, high=estimate.high, unit=unit, goal=text, holds=holds)


def argument_parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    parser = argparse.ArgumentParser(description=description.strip().splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="end within a minute, with wider intervals")
    parser.add_argument("--json", action="store_true", help="print a list of {name, value, low, high, unit, goal, holds} and nothing else")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the blocks (default 0)")
    return parser


def tell(text: str) -> None:
    """Say how far the benchmark is; on the error stream, so that standard output holds nothing but results."""
    print(text, file=sys.stderr, flush=True)


def show(results: Sequence[Result], *, as_json: bool) -> None:
    """Print the results for a program or for a person."""
    print(json.dumps([asdict(r) for r in results], indent=2) if as_json else table(results))


def table(results: Sequence[Result]) -> str:
    """Return the results as an aligned table."""
    rows = [("", "value", "95 % interval", "unit", "goal", "holds")]
    for r in results:
        verdict = {None: "", True: "yes", False: "NO"}[r.holds]
        rows.append((r.name, f"{r.value:.4g}", f"{r.low:.4g} to {r.high:.4g}", r.unit, r.goal or "", verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def describe_machine() -> str:
    """Return what the numbers depend on, for the line above the table."""
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return f"{len(os.sched_getaffinity(0))} cores, {platform.machine()}, Python {platform.python_version()}, load average {load}"


def fail(error: PPToolkitError) -> int:
    """Print an error as the last thing on the screen and return the exit code."""
    print(f"error: {error}", file=sys.stderr, flush=True)
    return error.exit_code
