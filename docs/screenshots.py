"""Take the pictures of the dashboard that README and docs show: every page, light and dark.

    python docs/screenshots.py                 on runs that the simulator makes
    python docs/screenshots.py --runs runs     on runs of your own; pages show the newest one

Needs Playwright for Python (pip install playwright) and Chromium (apt-get install chromium); nothing is downloaded.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # the synthetic runs live beside the tests

from dashboard.launch import command, environment, free_port  # noqa: E402
from tests.dashboard.synthetic import SyntheticRun, demo_runs  # noqa: E402

WIDTH = 1400
CHART = "[data-testid=stVegaLiteChart] svg"
SETTLE_S = 2.5  # after the last change: charts fade in


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: ``name``-light.png and ``name``-dark.png of a page.

    Args:
        path: Of the page, with the run.
        ready: What the page shows once it is drawn.
        press: Buttons to press before the picture is taken.
        height: Pixels.
    """

    name: str
    path: str
    ready: tuple[str, ...]
    press: tuple[str, ...] = ()
    height: int = 900


def pictures(*, first: str, second: str, live: str, recut: str | None) -> list[Picture]:
    """Return what is photographed; the arguments are names of runs, ``recut`` of one that was cut anew while it trained."""
    gantt = ".gantt[data-bars]"
    cut_anew = [
        Picture(name="timeline-cut-anew", path=f"/timeline?run={recut}&window=2330000-2740000", ready=(gantt, CHART), height=1030),
        Picture(name="rebalance-cut-anew", path=f"/rebalance?run={recut}", ready=(CHART, gantt), height=2330),
    ]
    return [
        *(cut_anew if recut is not None else []),
        Picture(name="runs", path="/", ready=("[data-testid=stDataFrame]", CHART), height=1040),
        Picture(name="timeline", path=f"/timeline?run={live}", ready=(gantt, CHART), height=1030),
        Picture(
            name="timeline-critical-path",
            path=f"/timeline?run={first}",
            ready=(gantt, CHART),
            press=("Critical path", "equal stages"),
            height=1180,
        ),
        Picture(name="timeline-causes", path=f"/timeline?run={first}", ready=(gantt, CHART), press=("by cause", "Arrows"), height=1050),
        Picture(name="stages", path=f"/stages?run={first}", ready=(CHART,), height=1760),
        Picture(name="links", path=f"/links?run={first}", ready=(CHART,), height=1960),
        Picture(name="rebalance", path=f"/rebalance?run={first}", ready=(CHART, gantt), height=2330),
        Picture(name="compare", path=f"/compare?run={second}", ready=(CHART, gantt), height=1960),
        Picture(name="what-if", path=f"/what-if?run={first}", ready=(gantt,), height=1450),
        Picture(name="health", path=f"/health?run={live}", ready=("[data-testid=stDataFrame]", CHART), height=960),
    ]


def main() -> None:
    """Start the dashboard, photograph it, stop it."""
    parser = argparse.ArgumentParser(description="Take the pictures of the dashboard.")
    parser.add_argument("--runs", type=Path, help="folder of runs; default: runs made by the simulator")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="pictures to take; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="where the PNG files go")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.runs is None:
            live = demo_runs(Path(folder) / "runs")
            wanted = pictures(first="gpt-1-equal-layers", second="gpt-2-suggested-cuts", live=live.run_id, recut="gpt-5-cut-anew")
        else:
            live = None
            names = sorted((path.parent for path in options.runs.glob("*/run.json")), key=lambda path: path.stat().st_mtime)
            wanted = pictures(first=names[0].name, second=with_parent(names).name, live=names[-1].name, recut=None)
        # Started in the folder above the runs, so that the pictures show short paths.
        where = Path(folder) if options.runs is None else Path.cwd()
        with serving(options.runs or Path("runs"), where) as address:
            for picture in [one for one in wanted if not options.only or one.name in options.only]:
                for theme in ("light", "dark"):
                    path = options.out / f"{picture.name}-{theme}.png"
                    with training(live):
                        photograph(address, picture, theme, path)
                    print(path)
                    if options.runs is not None and path.name == "timeline-light.png":
                        print(shutil.copyfile(path, options.out / "timeline.png"))  # what the README shows is a real run


def with_parent(runs: list[Path]) -> Path:
    """Return the newest run that applies another one's suggestion, which is what Compare is for; else the newest."""
    applied = [run for run in runs if json.loads((run / "run.json").read_text()).get("parent")]
    return (applied or runs)[-1]


@contextmanager
def training(live: SyntheticRun | None) -> Iterator[None]:
    """Let ``live`` give signs of life while the block runs, after two more steps, so that it is seen running."""
    ended = threading.Event()

    def beat() -> None:
        while live is not None and not ended.wait(0.7):
            live.beat()

    if live is not None:
        live.train(2)
    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def serving(runs: Path, where: Path) -> Iterator[str]:
    """Serve the dashboard, started in the folder ``where``, while the block runs; yields its address."""
    port = free_port(8600)
    process = subprocess.Popen(
        command(runs, port=port),
        cwd=where,
        env={**environment(), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=10)


def photograph(address: str, picture: Picture, theme: str, path: Path) -> None:
    """Open one page in a fresh browser and save what it shows."""
    from playwright.sync_api import Error, sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page: Any = browser.new_page(
            viewport={"width": WIDTH, "height": picture.height}, color_scheme="dark" if theme == "dark" else "light"
        )
        for attempt in range(60):
            try:
                page.goto(address + picture.path)
                break
            except Error:  # the server is still starting
                if attempt == 59:
                    raise
                time.sleep(0.5)
        for selector in picture.ready:
            page.wait_for_selector(selector, timeout=90_000)
        for name in picture.press:
            page.get_by_text(name, exact=True).first.click()
            _settle(page)
        _settle(page)
        page.screenshot(path=str(path))
        browser.close()


def _settle(page: Any) -> None:
    """Wait until the page is at rest: nothing of it is still faded because its successor is on the way."""
    time.sleep(SETTLE_S)
    page.wait_for_function("() => !document.querySelector('[data-stale=true]')", timeout=90_000)
    time.sleep(SETTLE_S)


if __name__ == "__main__":
    main()
