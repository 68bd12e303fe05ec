"""Which window the canvas gets, and what stays when the page refreshes."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dashboard.data import WatchedRun
from dashboard.timeline_message import DEFAULT_WIDTH_PX, Jump, Scene, build_message, newest_window, overview, step_window
from dashboard.view_state import ViewState
from dashboard.wire import decode
from tests.dashboard.synthetic import SyntheticRun

LIVE = Jump(token="run/1")


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SyntheticRun, WatchedRun]:
    monkeypatch.setattr("dashboard.data.POLL_EVERY_S", 0.0)
    run = SyntheticRun(root=tmp_path, run_id="run").train(10)
    return run, WatchedRun(run.directory.path)


def scene_of(watched: WatchedRun, **range_: object) -> Scene:
    watched.refresh()
    scene = watched.scene(**range_)  # type: ignore[arg-type]
    assert scene is not None
    return scene


def view(**changes: object) -> ViewState:
    return replace(ViewState(from_us=200_000, to_us=300_000, follow=False, width_px=900, jump=LIVE.token), **changes)  # type: ignore[arg-type]


def test_without_a_view_the_newest_steps_are_followed(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    scene = scene_of(watched[1])
    header, _, _ = decode(build_message(scene, None, LIVE))
    start_ns, end_ns = newest_window(scene, 2)
    assert header["follow"] is True
    assert header["view"] == pytest.approx([(start_ns - scene.start_ns) / 1e3, (end_ns - scene.start_ns) / 1e3])
    assert header["last_step"] == 9
    assert header["width"] == DEFAULT_WIDTH_PX


def test_an_own_view_is_answered_with_its_window_and_half_as_much_on_either_side(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    scene = scene_of(watched[1], around=(100_000_000, 400_000_000))
    header, bars, _ = decode(build_message(scene, view(), LIVE))
    assert header["view"] == pytest.approx([200_000, 300_000])
    assert header["loaded"] == pytest.approx([150_000, 350_000])
    assert header["origin_us"] == pytest.approx(150_000)
    assert header["width"] == 900
    assert bars["start"].min() <= 10_000
    assert bars["start"].max() >= 190_000


def test_a_refresh_changes_neither_the_jump_nor_the_own_view(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    """D8: the canvas keeps its own view as long as the jump's token stays."""
    run, reader = watched
    before, _, _ = decode(build_message(scene_of(reader, around=(0, 10**9)), view(), LIVE))
    run.train(5)
    after, _, _ = decode(build_message(scene_of(reader, around=(0, 10**9)), view(), LIVE))
    assert after["last_step"] == before["last_step"] + 5
    assert (after["jump"], after["view"]) == (before["jump"], before["view"])
    assert after["extent"][1] > before["extent"][1]


def test_a_new_jump_overrides_a_view_from_before_it(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    scene = scene_of(watched[1], newest=20)
    header, _, _ = decode(build_message(scene, view(), Jump(token="run/2", step=7)))
    start_ns, end_ns = step_window(scene, 7)
    assert header["follow"] is False
    assert header["view"] == pytest.approx([(start_ns - scene.start_ns) / 1e3, (end_ns - scene.start_ns) / 1e3])


def test_following_again_after_a_jump_shows_the_newest_steps(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    scene = scene_of(watched[1], newest=20)
    jump = Jump(token="run/2", step=3)
    header, _, _ = decode(build_message(scene, view(jump="run/2", follow=True), jump))
    assert header["view"][1] == pytest.approx((newest_window(scene, 2)[1] - scene.start_ns) / 1e3)


def test_a_step_that_does_not_exist_gives_the_nearest(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    scene = scene_of(watched[1], newest=20)
    assert step_window(scene, 5000) == step_window(scene, 9)


def test_only_the_steps_that_are_looked_at_are_read(watched: tuple[SyntheticRun, WatchedRun]) -> None:
    assert set(scene_of(watched[1], newest=3).timeline["step"]) == {7, 8, 9}
    scene = scene_of(watched[1], around=(300_000_000, 310_000_000))
    assert set(scene.timeline["step"]) == {2}
    assert len(scene.steps) == 10


def test_a_run_that_begins_anew_under_its_name_is_read_anew(watched: tuple[SyntheticRun, WatchedRun], tmp_path: Path) -> None:
    import shutil

    _, reader = watched
    assert len(scene_of(reader).steps) == 10
    shutil.rmtree(tmp_path / "run")
    SyntheticRun(root=tmp_path, run_id="run").train(3)
    assert len(scene_of(reader).steps) == 3


def test_the_overview_of_a_long_run_is_bounded_and_shows_its_slowest_steps() -> None:
    steps = pd.DataFrame({"step": range(10_000), "start_ns": range(0, 10**10, 10**6), "end_ns": range(10**6, 10**10 + 1, 10**6)})
    steps["step_time_s"] = 0.001
    steps.loc[4321, "step_time_s"] = 0.5
    columns = overview(steps, 0, most=100)
    assert {len(values) for values in columns.values()} == {100}
    assert max(columns["length"]) == 0.5e6
    assert columns["end"][-1] == pytest.approx(10**7)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {},
        {"from": 0, "to": 1},
        {"from": "x", "to": 1, "follow": True, "width": 10, "jump": ""},
        {"from": float("nan"), "to": 1, "follow": True, "width": 900, "jump": ""},
        {"from": 5, "to": 5, "follow": False, "width": 900, "jump": ""},
        {"from": 0, "to": float("inf"), "follow": False, "width": 900, "jump": ""},
    ],
)
def test_nonsense_from_the_browser_is_no_view(value: object) -> None:
    assert ViewState.read(value) is None


def test_an_absurd_width_from_the_browser_is_bounded() -> None:
    read = ViewState.read({"from": 0, "to": 9, "follow": 0, "width": 10**9, "jump": "a"})
    assert read == ViewState(from_us=0, to_us=9, follow=False, width_px=8000, jump="a")
