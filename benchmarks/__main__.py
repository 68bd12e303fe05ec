"""``make bench``: run every benchmark, one after the other, and write what they measured to docs/benchmarks.md.

A benchmark is a script of this folder: it prints its results with ``--json`` and says how far it is on the error stream.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks.report import Result, describe_machine

FOLDER = Path(__file__).parent
PAGE = FOLDER.parent / "docs" / "benchmarks.md"
_TIMEOUT_S = 3600


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmarks; return 1 if one failed or missed its goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Run the benchmarks and write docs/benchmarks.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all); nothing is written then")
    parser.add_argument("--quick", action="store_true", help="a minute each, with wider intervals; nothing is written")
    options = parser.parse_args(arguments)
    known = scripts()
    unknown = [name for name in options.names if name not in known]
    if unknown:
        parser.error(f"no benchmark is named {', '.join(unknown)}; there are: {', '.join(known)}")
    sections, broken, missed = [], [], []
    for name in options.names or known:
        print(f"== {name}", file=sys.stderr, flush=True)
        began = time.monotonic()
        results = run(name, quick=options.quick)
        if results is None:
            broken.append(f"{name}: no results, see above")
            continue
        sections.append(section(name, results, taken_s=time.monotonic() - began))
        print(sections[-1], flush=True)
        missed += [f"{name}: {result.name}" for result in results if result.holds is False]
    if not (options.names or options.quick or broken):
        PAGE.write_text(page(sections))
        print(f"wrote {PAGE.relative_to(FOLDER.parent)}", file=sys.stderr)
    if broken or missed:
        print(f"not as promised: {'; '.join(broken + missed)}", file=sys.stderr)
        return 1
    return 0


def scripts() -> list[str]:
    """Return the names of the benchmarks: the modules of this folder with a benchmark's options."""
    found = sorted(path for path in FOLDER.glob("*.py") if path.stem not in ("__main__", "report"))
    return [path.stem for path in found if "argument_parser(" in path.read_text()]


def run(name: str, *, quick: bool) -> list[Result] | None:
    """Run one benchmark; None if it failed, having said why on the error stream."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json", *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(command, cwd=FOLDER.parent, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=_TIMEOUT_S)
        # A missed goal may end a benchmark with 1; what it measured is told all the same.
        return [Result(**entry) for entry in json.loads(done.stdout)]
    except (subprocess.TimeoutExpired, ValueError, TypeError) as error:
        print(f"{name} gave no results: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def section(name: str, results: Sequence[Result], *, taken_s: float) -> str:
    """Return one benchmark's results as a section of the page."""
    lines = [f"## {name}", "", "| | value | 95 % interval | unit | goal | holds |", "|---|---:|---:|---|---|---|"]
    for r in results:
        holds = {None: "", True: "yes", False: "**no**"}[r.holds]
        lines.append(f"| {r.name} | {r.value:.4g} | {r.low:.4g} to {r.high:.4g} | {r.unit} | {r.goal or ''} | {holds} |")
    return "\n".join([*lines, "", f"`python -m benchmarks.{name}`, {taken_s:.0f} s", ""])


def page(sections: Sequence[str]) -> str:
    """Return the whole page, with what the figures depend on."""
    today = datetime.date.today().isoformat()
    versions = f"torch {metadata.version('torch')}, Linux {platform.release()}"
    head = f"# Benchmarks\n\nWritten by `make bench` on {today}: {describe_machine()}, {versions}.\n"
    return "\n".join([head, *sections])


if __name__ == "__main__":
    sys.exit(main())
