"""What a browser measures of the dashboard: first paint, redraw, and what 500 refreshes leave behind in the app and in the tab.

Headless Chromium, steered by Playwright.
"""

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.large_runs import LargeRun
from dashboard.launch import command, environment, free_port
from dashboard.page_file import newest_scene, standalone_page
from dashboard.timeline_message import Jump, Panel, build_message
from dashboard.view_state import ViewState
from pptoolkit.errors import RunError
from pptoolkit.run import Run

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
WAIT_MS = 90_000
SIZE = {"width": 1400, "height": 900}
_FIND = (  # inside the component's shadow root in the app, in the page itself in a file
    "[...document.querySelectorAll('*')]"
    ".map((e) => e.shadowRoot?.querySelector('.gantt') ?? (e.matches('.gantt') ? e : null)).find(Boolean)"
)
# From a key to the pixels: the drawing comes with the next frame, and reading a pixel waits until all are there.
_PRESS = f"""async (key) => {{
    const canvas = {_FIND}.querySelector("canvas");
    const began = performance.now();
    canvas.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
    await new Promise(requestAnimationFrame);
    canvas.getContext("2d").getImageData(0, 0, 1, 1);
    return performance.now() - began;
}}"""
# As the command starts it, but with its pages refreshed more often than once a second: 500 refreshes need not take 500 seconds.
# Curves, which are drawn less often, are hurried likewise: the same refreshes bring the same pictures.
_HURRIED = """
import sys, dashboard.data, dashboard.frame
from streamlit.web.cli import main
dashboard.data.CURVES_PAUSE_S *= {seconds} / dashboard.frame.REFRESH_S
dashboard.frame.REFRESH_S = {seconds}
sys.argv[0] = "streamlit"
main()
"""


class Growth(NamedTuple):
    """Memory over many refreshes, in MiB above that after the first ones: of the app, and of the tab's JavaScript."""

    app: list[float]
    tab: list[float]


@contextmanager
def chromium() -> Iterator[Any | None]:
    """Yield a browser, or None where there is no Chromium or no Playwright."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path = None
    if path is None:
        yield None
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def serving(runs: Path, *, refresh_s: float | None = None) -> Iterator[tuple[str, int]]:
    """Serve the dashboard; yields its address and its process id."""
    port = free_port(8750)
    words = command(runs, port=port)
    if refresh_s is not None:
        words = [words[0], "-c", _HURRIED.format(seconds=refresh_s), *words[3:]]
    process = subprocess.Popen(words, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(timeout=10)


def paint_and_redraw(browser: Any, run: LargeRun, *, paints: int, redraws: int) -> tuple[list[float], list[float], int]:
    """Return the seconds from the address to the bars, the milliseconds of each drawing while zooming, and how many bars there are."""
    with serving(run.directory.path.parent) as (address, _):
        times, page = [], None
        for _ in range(paints):
            if page is not None:
                page.close()
            page, took_s = _open(browser, f"{address}/timeline?run={run.run_id}")
            times.append(took_s)
        assert page is not None, "at least one paint"
        bars = int(page.evaluate(f"() => {_FIND}.dataset.bars"))
        drawn = _zoom(page, redraws)
        page.close()
    return times, drawn, bars


def redraw_many(browser: Any, root: Path, *, bars: int, redraws: int) -> tuple[list[float], int]:
    """Draw at least so many bars, none of them merged, over and over; return the milliseconds and the number of bars."""
    run = LargeRun(root=root, run_id="redraw", ranks=64, micro_batches=64)
    run.train(max(2, round(bars / (64 * 64 * 4.0))) + 1)
    run.close()
    scene = newest_scene(Run.open(run.directory.path))
    assert scene is not None, "the run has steps"
    span_us = (scene.end_ns - scene.start_ns) / 1e3
    everything = ViewState(from_us=0.0, to_us=span_us, follow=False, width_px=400_000, jump="redraw")
    message = build_message(scene, everything, Jump(token="redraw", window_us=(0.0, span_us)), panel=Panel(levels=False))
    path = root / "redraw.html"
    path.write_text(standalone_page("redraw", message), encoding="utf-8")
    page = browser.new_page(viewport=SIZE)
    page.goto(path.as_uri())
    page.wait_for_function(f"() => Number({_FIND}?.dataset.bars) > 0", timeout=WAIT_MS)
    found = int(page.evaluate(f"() => {_FIND}.dataset.bars"))
    drawn = _zoom(page, redraws, keys="-")  # everything is in view, so it is drawn again as a whole
    page.close()
    shutil.rmtree(run.directory.path)
    return drawn, found


def watch(browser: Any, root: Path, *, refreshes: int, refresh_s: float = 0.2) -> Growth:
    """Let a page follow a run that trains, and look at the memory of the app and of the tab every now and then.

    Raises:
        RunError: If the page stops refreshing.
    """
    import psutil

    run = LargeRun(root=root, run_id="watched", ranks=4).train(50)
    warm, every = 30, max(refreshes // 10, 1)
    app: list[float] = []
    tab: list[float] = []
    with serving(root, refresh_s=refresh_s) as (address, pid):
        page, _ = _open(browser, f"{address}/timeline?run=watched")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        process = psutil.Process(pid)
        for i in range(warm + refreshes + 1):
            run.train(1)
            _wait_for_step(page, run.done - 1)
            if i >= warm and (i - warm) % every == 0:
                session.send("HeapProfiler.collectGarbage")
                found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
                app.append(process.memory_info().rss / (1 << 20))
                tab.append(found["JSHeapUsedSize"] / (1 << 20))
        page.close()
    run.close()
    shutil.rmtree(run.directory.path)
    return Growth([value - app[0] for value in app[1:]], [value - tab[0] for value in tab[1:]])


def _wait_for_step(page: Any, step: int) -> None:
    from playwright.sync_api import TimeoutError

    try:
        # Asked once a step, and looked for inside the page: many questions from here would take the processor that both need.
        page.wait_for_function(f"(step) => Number({_FIND}?.dataset.last ?? -1) >= step", arg=step, polling=20, timeout=60_000)
    except TimeoutError as error:
        raise RunError(f"the page did not show step {step} within 60 s; look at its log for why it stopped refreshing") from error


def _open(browser: Any, address: str) -> tuple[Any, float]:
    """Open a page and wait for its bars; return it and the seconds it took once the server answered."""
    page = browser.new_page(viewport=SIZE)
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
    page.wait_for_function(f"() => Number({_FIND}?.dataset.bars) > 0", timeout=WAIT_MS)
    return page, time.perf_counter() - began


def _zoom(page: Any, redraws: int, *, keys: str = "-+") -> list[float]:
    times = []
    for i in range(redraws):
        times.append(float(page.evaluate(_PRESS, keys[i % len(keys)])))
        page.wait_for_timeout(120)  # for the server's answer, which draws too
    return times
