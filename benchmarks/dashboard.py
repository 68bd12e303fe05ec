"""How fast the dashboard is: first paint, refresh and redraw, for runs of many events and of many ranks.

The runs are made by the simulator. A refresh is what the server does for the Timeline page after a run has grown by a step: reading
what is new, the windows of its steps, the numbers, the curves' data, the message for the canvas. Redraws are timed in headless Chromium
by the canvas itself; without Playwright or Chromium that part is left out. Refreshes are given by the clock, which is what a person waits,
and by the processor's time, which is what they cost where others share the machine.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.large_runs import LargeRun
from benchmarks.paired import Estimate, location
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from dashboard import data
from dashboard.data import WatchedRun
from dashboard.launch import command, environment, free_port
from dashboard.timeline_message import Jump, Panel, build_message
from dashboard.view_state import ViewState
from pptoolkit.errors import PPToolkitError

EVENTS = (10_000, 100_000, 1_000_000)
RANKS = (1, 64, 1024)
REFRESH_GOAL_MS = 300
REDRAW_GOAL_MS = 100
MEMORY_GOAL_MIB = 20
_BARS = 100_000
_FIND = (  # inside the component's shadow root in the app, in the page itself in a file
    "[...document.querySelectorAll('*')]"
    ".map((e) => e.shadowRoot?.querySelector('.gantt') ?? (e.matches('.gantt') ? e : null)).find(Boolean)"
)


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--no-browser", action="store_true", help="leave out what needs Chromium")
    options = parser.parse_args()
    tell(describe_machine())
    repeats, refreshes = (6, 60) if options.quick else (20, 500)
    sizes = [(4, events) for events in (EVENTS[:2] if options.quick else EVENTS)]
    sizes += [(ranks, 100_000 if options.quick else 1_000_000) for ranks in RANKS if not (options.quick and ranks > 64)]
    data.POLL_EVERY_S = 0.0  # two refreshes may follow at once here
    results: list[Result] = []
    try:
        with tempfile.TemporaryDirectory(prefix="pptoolkit-dashboard-") as name:
            for ranks, events in sizes:
                results += _server(Path(name), ranks=ranks, events=events, repeats=repeats)
            results.append(_memory(Path(name), refreshes=refreshes))
            if not options.no_browser:
                results += _browser(Path(name), repeats=repeats, sizes=[events for _, events in sizes[: 2 if options.quick else 3]])
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


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


def _server(root: Path, *, ranks: int, events: int, repeats: int) -> list[Result]:
    tell(f"{ranks} ranks, {events:,} events")
    run = _grown(root, ranks=ranks, events=events)
    jump = Jump(token="benchmark")
    opened_s, _ = _timed(lambda: _page(WatchedRun(run.directory.path), jump), 6)
    watched = WatchedRun(run.directory.path)
    _page(watched, jump)

    def grow_and_look() -> tuple[float, float]:
        run.train(1)
        return _once(lambda: _page(watched, jump))

    pairs = [grow_and_look() for _ in range(repeats)]
    run.close()
    shutil.rmtree(run.directory.path)
    label = f"{ranks} ranks, {events:,} events"
    goal = events >= 1_000_000 and ranks <= 64
    refresh = location([wall * 1e3 for wall, _ in pairs])
    processor = location([own * 1e3 for _, own in pairs])
    return [
        measured(f"{label}: first look, server", location([s * 1e3 for s in opened_s]), "ms"),
        at_most(f"{label}: refresh, server, by the clock", refresh, "ms", goal=REFRESH_GOAL_MS)
        if goal
        else measured(f"{label}: refresh, server, by the clock", refresh, "ms"),
        measured(f"{label}: refresh, server, of its processor", processor, "ms"),
    ]


def _memory(root: Path, *, refreshes: int) -> Result:
    """Look again and again at a run that stands still: what grows then is a leak."""
    import psutil

    tell(f"memory over {refreshes} refreshes")
    run = _grown(root, ranks=4, events=100_000)
    watched, jump, process = WatchedRun(run.directory.path), Jump(token="benchmark"), psutil.Process()
    for _ in range(20):
        _page(watched, jump)
    before = process.memory_info().rss
    grown = []
    for i in range(refreshes):
        run.beat()
        watched._version += 1  # as if there were something new, so that nothing is kept
        _page(watched, jump)
        if i % max(refreshes // 10, 1) == 0:
            grown.append((process.memory_info().rss - before) / (1 << 20))
    run.close()
    last = (process.memory_info().rss - before) / (1 << 20)
    estimate = Estimate(value=last, low=min(*grown, last), high=max(*grown, last))
    return at_most(f"memory of the app over {refreshes} refreshes: growth", estimate, "MiB", goal=MEMORY_GOAL_MIB)


def _browser(root: Path, *, repeats: int, sizes: Sequence[int]) -> list[Result]:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        tell("no Chromium or no Playwright: first paint and redraw are left out")
        return []
    results = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for events in sizes:
            tell(f"first paint, {events:,} events")
            run = _grown(root, ranks=4, events=events)
            with _serving(run.directory.path.parent) as address:
                name = run.run_id
                times = [_first_paint(browser, f"{address}/timeline?run={name}") for _ in range(6)]
            run.close()
            shutil.rmtree(run.directory.path)
            results.append(measured(f"{events:,} events: first paint, from address to bars", location([s * 1e3 for s in times]), "ms"))
        results.append(_redraw(browser, root, repeats=max(repeats, 12)))
        browser.close()
    return results


@contextmanager
def _serving(runs: Path) -> Iterator[str]:
    port = free_port(8750)
    words = command(runs, port=port)
    process = subprocess.Popen(words, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


def _first_paint(browser: Any, address: str) -> float:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    deadline = time.monotonic() + 60
    while True:
        began = time.perf_counter()
        try:
            page.goto(address)
            break
        except Exception:  # the server is still starting
            if time.monotonic() > deadline:
                raise
            time.sleep(0.3)
    page.wait_for_function(f"() => Number({_FIND}?.dataset.bars) > 0", timeout=60_000)
    took_s = time.perf_counter() - began
    page.close()
    return took_s


def _redraw(browser: Any, root: Path, *, repeats: int) -> Result:
    """Draw many bars, none of them merged, over and over while panning; the canvas says how long each drawing took."""
    from dashboard.page_file import newest_scene, standalone_page
    from pptoolkit.run import Run

    tell(f"redraw of {_BARS:,} bars")
    run = LargeRun(root=root, run_id="redraw", ranks=64, micro_batches=64)
    run.train(max(2, round(_BARS / (64 * 64 * 4.0))) + 1)
    run.close()
    scene = newest_scene(Run.open(run.directory.path))
    assert scene is not None, "the run has steps"
    span_us = (scene.end_ns - scene.start_ns) / 1e3
    everything = ViewState(from_us=0.0, to_us=span_us, follow=False, width_px=400_000, jump="redraw")
    message = build_message(scene, everything, Jump(token="redraw", window_us=(0.0, span_us)), panel=Panel(levels=False))
    path = root / "redraw.html"
    path.write_text(standalone_page("redraw", message), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function(f"() => Number({_FIND}?.dataset.bars) > 0", timeout=60_000)
    bars = int(page.evaluate(f"() => {_FIND}.dataset.bars"))
    page.locator("canvas").focus()
    times = []
    for _ in range(repeats):
        page.keyboard.press("-")  # everything is in view, so it is drawn again as a whole
        page.wait_for_timeout(250)
        times.append(float(page.evaluate(f"() => {_FIND}.dataset.redraw")))
    page.close()
    shutil.rmtree(run.directory.path)
    return at_most(f"redraw of {bars:,} bars in Chromium", location(times), "ms", goal=REDRAW_GOAL_MS)


def _once(look: Callable[[], object]) -> tuple[float, float]:
    wall, own = time.perf_counter(), time.thread_time()
    look()
    return time.perf_counter() - wall, time.thread_time() - own


def _timed(look: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    pairs = [_once(look) for _ in range(repeats)]
    return [wall for wall, _ in pairs], [own for _, own in pairs]


if __name__ == "__main__":
    sys.exit(main())
