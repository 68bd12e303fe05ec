"""How fast the dashboard is: first paint, refresh and redraw, for runs of many events and of many ranks, and whether its memory is flat.

The runs are made by the simulator. A refresh is what the server does for the Timeline page after a run has grown by a step: reading
what is new, the windows of its steps, the numbers, the curves' data, the message for the canvas. First paint and redraw are timed in
headless Chromium; without Playwright or Chromium they are left out. Refreshes are given by the clock, which is what a person waits, and
by the processor's time, which is what they cost where others share the machine.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.dashboard_browser import chromium, paint_and_redraw, redraw_many, watch
from benchmarks.large_runs import LargeRun
from benchmarks.paired import Estimate, location
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from dashboard import data
from dashboard.catalogue import settle
from dashboard.data import WatchedRun
from dashboard.timeline_message import Jump, build_message
from pptoolkit.errors import PPToolkitError

EVENTS = (10_000, 100_000, 1_000_000)
RANKS = (1, 64, 1024)
REFRESH_GOAL_MS = 300
REDRAW_GOAL_MS = 100
MEMORY_GOAL_MIB = 20
_BARS = 100_000
_PARTS = ("sizes", "bars", "memory")


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--no-browser", action="store_true", help="leave out what needs Chromium")
    parser.add_argument("--parts", nargs="+", choices=_PARTS, default=_PARTS, help="what to measure; default: all")
    options = parser.parse_args()
    tell(describe_machine())
    sizes = [(4, events) for events in EVENTS] + [(ranks, EVENTS[-1]) for ranks in RANKS]
    if options.quick:
        sizes = [(4, 10_000), (4, 100_000), (64, 100_000)]
    data.POLL_EVERY_S = 0.0  # two refreshes may follow at once here
    settle()  # as the app does
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory(prefix="pptoolkit-dashboard-") as name, chromium() as browser:
            if browser is None:
                tell("no Chromium or no Playwright: first paint and redraw are left out")
            for ranks, events in sizes if "sizes" in options.parts else []:
                results += _measure(Path(name), None if options.no_browser else browser, ranks=ranks, events=events, quick=options.quick)
            if browser is not None and not options.no_browser and "bars" in options.parts:
                results += _many_bars(browser, Path(name), redraws=12 if options.quick else 30)
            if browser is not None and not options.no_browser and "memory" in options.parts:
                results += _memory(browser, Path(name), refreshes=40 if options.quick else 500)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _measure(root: Path, browser: Any | None, *, ranks: int, events: int, quick: bool) -> list[Result]:
    tell(f"{ranks} ranks, {events:,} events")
    run = _grown(root, ranks=ranks, events=events)
    label = f"{ranks} rank{'s' if ranks > 1 else ''}, {events:,} events"
    results = _server(run, label, repeats=6 if quick else 20, goal=events == EVENTS[-1])
    if browser is not None:
        paints, drawn, bars = paint_and_redraw(browser, run, paints=6, redraws=12)
        results.append(measured(f"{label}: first paint, from address to bars", location([s * 1e3 for s in paints]), "ms"))
        results.append(at_most(f"{label}: redraw of {bars:,} bars", location(drawn), "ms", goal=REDRAW_GOAL_MS))
    run.close()
    shutil.rmtree(run.directory.path)
    return results


def _grown(root: Path, *, ranks: int, events: int) -> LargeRun:
    run = LargeRun(root=root, run_id=f"{ranks}-ranks-{events}-events", ranks=ranks)
    steps = max(3, events // run.events_per_step)
    while run.done < steps:
        run.train(min(256, steps - run.done))
    return run


def _page(watched: WatchedRun, jump: Jump) -> int:
    """Do what the Timeline page does on the server, short of Streamlit itself; return the size of the message."""
    watched.refresh()
    watched.liveness()
    watched.last_sign_unix_s()
    watched.brief()
    watched.losses()
    watched.step_times()
    scene = watched.scene(newest=jump.steps + 1)
    return len(build_message(scene, None, jump)) if scene is not None else 0


def _server(run: LargeRun, label: str, *, repeats: int, goal: bool) -> list[Result]:
    jump = Jump(token="benchmark")
    opened = [_once(WatchedRun(run.directory.path), jump) for _ in range(6)]
    watched = WatchedRun(run.directory.path)
    _page(watched, jump)

    def grow_and_look() -> tuple[float, float]:
        run.train(1)
        return _once(watched, jump)

    pairs = [grow_and_look() for _ in range(repeats)]
    clock, name = location([wall * 1e3 for wall, _ in pairs]), f"{label}: refresh, server, by the clock"
    return [
        measured(f"{label}: first look, server", location([wall * 1e3 for wall, _ in opened]), "ms"),
        at_most(name, clock, "ms", goal=REFRESH_GOAL_MS) if goal else measured(name, clock, "ms"),
        measured(f"{label}: refresh, server, of its processor", location([own * 1e3 for _, own in pairs]), "ms"),
    ]


def _many_bars(browser: Any, root: Path, *, redraws: int) -> list[Result]:
    tell(f"redraw of {_BARS:,} bars")
    drawn, bars = redraw_many(browser, root, bars=_BARS, redraws=redraws)
    return [at_most(f"redraw of {bars:,} visible bars, none merged", location(drawn), "ms", goal=REDRAW_GOAL_MS)]


def _memory(browser: Any, root: Path, *, refreshes: int) -> list[Result]:
    """Follow a run that trains: what grows beyond its few new events is a leak."""
    tell(f"memory over {refreshes} refreshes")
    growth = watch(browser, root, refreshes=refreshes)
    return [
        at_most(
            f"memory of the {what} over {refreshes} refreshes: growth, with its least and largest",
            _span(values),
            "MiB",
            goal=MEMORY_GOAL_MIB,
        )
        for what, values in (("app", growth.app), ("tab", growth.tab))
    ]


def _span(values: Sequence[float]) -> Estimate:
    """Return the last value with the smallest and the largest."""
    return Estimate(value=values[-1], low=min(values), high=max(values))


def _once(watched: WatchedRun, jump: Jump) -> tuple[float, float]:
    """Return what a look takes by the clock and, over all threads, of the processor."""
    wall, own = time.perf_counter(), time.process_time()
    _page(watched, jump)
    return time.perf_counter() - wall, time.process_time() - own


if __name__ == "__main__":
    sys.exit(main())
