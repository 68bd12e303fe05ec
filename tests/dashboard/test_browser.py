"""The real page in a real browser: drawing, hover, live refresh, apply, and not one request that leaves the machine."""

import re
import shutil
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.large_runs import LargeRun
from dashboard.charts.palette import OP_STYLES
from dashboard.launch import command, environment, free_port
from dashboard.page_file import newest_scene, standalone_page
from dashboard.timeline_message import Jump, Panel, build_message
from dashboard.view_state import ViewState
from pptoolkit.run import Run
from pptoolkit.telemetry.events import Op
from tests.dashboard.synthetic import SyntheticRun

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright for Python: pip install playwright")
pytestmark = [
    pytest.mark.timeout(100),
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium"),
]
WAIT_MS = 20_000
_LINE = "[data-testid=stVegaLiteChart] svg .mark-line path"
POINTS_OF_A_CURVE = f"(document.querySelector('{_LINE}')?.getAttribute('d') ?? '').split(/[ML]/).length - 1"


@pytest.fixture
def server(runs: Path) -> Iterator[str]:
    runs.mkdir()
    port = free_port(8700)
    with (runs.parent / "server.log").open("w") as log:
        process = subprocess.Popen(command(runs, port=port), env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            _wait_for(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=10)
    assert "Traceback" not in (runs.parent / "server.log").read_text()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail("the dashboard did not answer within 30 s")


class Page:
    """A browser page that remembers its complaints and its requests."""

    def __init__(self, browser: Any) -> None:
        self.page = browser.new_page(viewport={"width": 1400, "height": 900})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type == "error" else None)
        self.page.on("request", lambda request: self.requests.append(request.url))

    def view(self) -> dict[str, str]:
        return dict(self.page.eval_on_selector(".gantt", "element => ({...element.dataset})"))

    def wait_for_view(self, condition: str) -> None:
        find = "[...document.querySelectorAll('*')].map((e) => e.shadowRoot?.querySelector('.gantt')).find(Boolean)?.dataset"
        script = f"() => {{ const d = {find}; return d && ({condition}); }}"
        self.page.wait_for_function(script, timeout=WAIT_MS)


@pytest.fixture
def page() -> Iterator[Page]:
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield Page(browser)
        browser.close()


def test_a_person_watches_a_run_zooms_in_and_applies_the_suggested_cuts(server: str, page: Page, runs: Path) -> None:
    page.page.goto(server)
    page.page.get_by_text("There are no runs yet").wait_for(timeout=WAIT_MS)  # D3: waits politely
    run = SyntheticRun(root=runs, run_id="live").train(12)
    page.page.get_by_text("1 run in the folder").wait_for(timeout=WAIT_MS)  # and fills by itself

    page.page.get_by_role("link", name="Timeline").click()
    page.wait_for_view("d.last === '11' && Number(d.bars) > 100")
    assert page.view()["follow"] == "true"
    assert _colors_of_the_canvas(page) > 6

    page.page.wait_for_function(f"() => {POINTS_OF_A_CURVE} >= 12", timeout=WAIT_MS)
    box = page.page.locator(".gantt canvas").bounding_box()
    tip = page.page.locator(".gantt .tip")
    _hover_until(page, box, tip, "forward F")
    assert "micro-batch" in tip.inner_text()
    assert "stage" in tip.inner_text()
    assert "duration" in tip.inner_text()

    page.page.mouse.wheel(0, -500)
    page.wait_for_view("d.follow === 'false'")
    zoomed = page.view()
    run.train(3)
    page.wait_for_view("d.last === '14'")  # D4: the new steps have come
    assert {name: page.view()[name] for name in ("from", "to", "follow")} == {name: zoomed[name] for name in ("from", "to", "follow")}  # D8

    page.page.wait_for_function(f"() => {POINTS_OF_A_CURVE} >= 15", timeout=WAIT_MS)  # the curve goes on in the picture that is there

    page.page.locator(".gantt canvas").focus()
    page.page.keyboard.press("Space")
    page.wait_for_view(f"d.follow === 'true' && Number(d.to) > {zoomed['to']}")

    page.page.get_by_role("link", name="Rebalance").click()
    page.page.get_by_role("button", name="Apply to next run").click(timeout=WAIT_MS)
    page.page.get_by_text("is written").wait_for(timeout=WAIT_MS)
    assert tomllib.loads((runs / "live" / "next-plan.toml").read_text())["cuts"][-1] == 9

    assert page.complaints == []
    local = (server, server.replace("http", "ws"), "data:", f"blob:{server}")
    assert [url for url in page.requests if not url.startswith(local)] == []


def test_a_deep_link_restores_run_and_step(server: str, page: Page, runs: Path) -> None:
    for name in ("first", "second"):
        SyntheticRun(root=runs, run_id=name).train(12).finish()
    page.page.goto(f"{server}/timeline?run=first&step=4")
    page.wait_for_view("d.follow === 'false' && d.last === '11'")
    page.page.locator(".gantt").get_by_role("button", name="PNG").wait_for()
    view = page.view()
    middle = (float(view["from"]) + float(view["to"])) / 2
    assert 4 <= middle / 127_500 <= 5  # each step of these runs takes about 127 ms
    page.page.get_by_role("button", name="Next step").click()
    page.wait_for_view(f"Number(d.from) > {view['from']}")
    page.page.wait_for_url(re.compile(r"run=first&step=4&window=\d+-\d+$"), timeout=WAIT_MS)

    moved = page.view()
    page.page.goto(page.page.url)  # as somebody else would who was sent the address
    page.wait_for_view("d.follow === 'false' && d.last === '11'")
    assert [abs(float(page.view()[end]) - float(moved[end])) < 10 for end in ("from", "to")] == [True, True]


def test_paths_causes_and_details_are_shown_on_demand_and_a_dragged_cut_is_simulated_at_once(server: str, page: Page, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="run").train(12).finish()
    page.page.goto(f"{server}/timeline?run=run")
    page.wait_for_view("Number(d.bars) > 100 && d.path === '0'")
    page.page.locator(".gantt").get_by_role("button", name="Critical path").click()
    page.wait_for_view("Number(d.path) >= 2")
    page.page.locator(".gantt").get_by_role("button", name="by cause").click()
    page.wait_for_view("Number(d.causes) >= 2")
    assert "stages not alike" in page.page.locator(".gantt .legend").inner_text()
    assert all(word in page.page.locator(".gantt .legend").inner_text() for word in ("warm-up", "steady", "cool-down", "critical path"))
    page.page.locator(".gantt").get_by_role("button", name="Arrows").click()

    page.page.locator(".gantt canvas").focus()
    page.page.keyboard.press("Enter")  # the first bar in view, by keys alone
    details = page.page.locator(".gantt .details")
    details.get_by_text("duration").wait_for(timeout=WAIT_MS)
    first = details.inner_text()
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("([e, first]) => e.innerText !== first", arg=[details.element_handle(), first], timeout=WAIT_MS)
    with page.page.expect_download(timeout=WAIT_MS) as saved:
        page.page.locator(".gantt").get_by_role("button", name="CSV").click()
    rows = Path(saved.value.path()).read_text().splitlines()
    assert rows[0].startswith("rank,replica,stage,op,micro_batch,step,start_us")
    assert len(rows) > 100
    page.page.get_by_role("link", name="Rebalance").click()
    handle = page.page.get_by_role("slider", name="Cut between stage 2 and stage 3")
    handle.focus(timeout=WAIT_MS)
    page.page.keyboard.press("ArrowRight")
    page.page.get_by_text("Simulated step, yours").wait_for(timeout=WAIT_MS)
    page.page.get_by_role("button", name="Apply your own").click(timeout=WAIT_MS)
    page.page.get_by_text("is written").wait_for(timeout=WAIT_MS)
    assert tomllib.loads((runs / "run" / "next-plan.toml").read_text())["cuts"] == [3, 6, 9]


def test_very_many_narrow_bars_are_drawn_in_the_colors_of_their_ops(page: Page, tmp_path: Path) -> None:
    run = LargeRun(root=tmp_path, run_id="many", ranks=16, micro_batches=64).train(3)
    run.close()
    scene = newest_scene(Run.open(run.directory.path))
    assert scene is not None
    span_us = (scene.end_ns - scene.start_ns) / 1e3
    everything = ViewState(from_us=0.0, to_us=span_us, follow=False, width_px=100_000, jump="all")
    message = build_message(scene, everything, Jump(token="all", window_us=(0.0, span_us)), panel=Panel(levels=False))
    (tmp_path / "many.html").write_text(standalone_page("many", message), encoding="utf-8")
    page.page.goto((tmp_path / "many.html").as_uri())
    page.page.locator(".gantt[data-bars]").wait_for(timeout=WAIT_MS)
    assert int(page.view()["bars"]) > 6000  # from here on they are written pixel by pixel
    for op in (Op.FORWARD, Op.BACKWARD, Op.RECV):
        assert _pixels(page, OP_STYLES[op].color) > 1000, op.name
    assert page.complaints == []


def _pixels(page: Page, color: str) -> int:
    """Count the pixels of exactly this colour."""
    script = """(canvas, color) => {
        const wanted = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let found = 0;
        for (let i = 0; i < data.length; i += 4) if (wanted.every((value, k) => data[i + k] === value)) found++;
        return found;
    }"""
    return int(page.page.eval_on_selector(".gantt canvas", script, color))


def _colors_of_the_canvas(page: Page) -> int:
    """Count colours that fill at least 200 pixels: an empty or failed canvas has one."""
    return int(
        page.page.eval_on_selector(
            ".gantt canvas",
            """canvas => {
                const pixels = new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer);
                const count = new Map();
                for (const pixel of pixels) count.set(pixel, (count.get(pixel) ?? 0) + 1);
                return [...count.values()].filter((n) => n > 200).length;
            }""",
        )
    )


def _hover_until(page: Page, box: Any, tip: Any, text: str) -> None:
    """Move along the first row until the tooltip says ``text``."""
    for x in range(150, int(box["width"]), 4):
        page.page.mouse.move(box["x"] + x, box["y"] + 105)
        if tip.is_visible() and text in tip.inner_text():
            return
    pytest.fail(f"no bar of the first row answered with {text!r}")
