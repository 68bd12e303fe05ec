"""A run that is cut anew while it trains: what is said of it, where the timeline marks it, and what the pages show."""

from pathlib import Path

import pytest

from dashboard.data import WatchedRun
from dashboard.page_file import page_text
from dashboard.recuts import cut_marks, find_recuts, recut_rows, recut_times
from dashboard.timeline_message import Jump, Scene, build_message, cut_places
from dashboard.wire import decode
from pptoolkit.plan import Prediction
from pptoolkit.planner.rebalance import describe_achievement
from pptoolkit.run import Run
from tests.dashboard.synthetic import SyntheticRun

PROMISE = Prediction(step_time_s=0.1064, low_s=0.100, high_s=0.112, bubble_ratio=0.28, baseline_step_time_s=0.1271)


@pytest.fixture(scope="module")
def recut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten steps under cuts 3, 6, 8, then ten under 4, 7, 9."""
    run = SyntheticRun(root=tmp_path_factory.mktemp("recut"), run_id="recut").train(10).recut((4, 7, 9), PROMISE).train(10).finish()
    return run.directory.path


def watched(path: Path) -> WatchedRun:
    run = WatchedRun(path)
    run.refresh()
    return run


def test_a_recut_has_what_was_left_what_was_promised_and_what_came(recut: Path) -> None:
    (one,) = watched(recut).recuts()
    assert (one.step, one.before, one.after, one.promise) == (10, (3, 6, 8), (4, 7, 9), PROMISE)
    assert one.left is not None
    assert one.check is not None
    assert one.left.samples == one.check.achieved.samples == 9  # each plan's own steps, without its first use
    assert one.left.median == pytest.approx(0.127, rel=0.01)
    assert one.check.within
    run = Run.open(recut)
    prediction = run.report().prediction
    assert prediction is not None
    assert one.check.achieved == prediction.achieved
    assert f"step {one.step}, cuts {list(one.before)} -> {list(one.after)}" in describe_achievement(prediction, run.info)


def test_as_rows_a_recut_is_told_in_ms_and_as_a_picture_in_three_times(recut: Path) -> None:
    recuts = watched(recut).recuts()
    (row,) = recut_rows(recuts).to_dict("records")
    assert (row["step"], row["before"], row["after"], row["within"]) == (10, "3, 6, 8", "4, 7, 9", "yes")
    assert row["predicted_ms"] == pytest.approx(106.4)
    assert row["error"] == pytest.approx(100 * (row["achieved_ms"] / row["predicted_ms"] - 1))
    assert [(time.kind, time.seconds * 1e3) for time in recut_times(recuts)] == [
        ("others", pytest.approx(row["left_ms"])),
        ("predicted", pytest.approx(106.4)),
        ("measured", pytest.approx(row["achieved_ms"])),
    ]


def test_a_recut_without_a_step_yet_has_only_its_promise(tmp_path: Path) -> None:
    run = SyntheticRun(root=tmp_path, run_id="fresh").train(10).recut((4, 7, 9), PROMISE)
    recuts = watched(run.directory.path).recuts()
    (row,) = recut_rows(recuts).to_dict("records")
    assert row["achieved_ms"] is row["within"] is None
    assert [time.kind for time in recut_times(recuts)] == ["others", "predicted"]
    assert cut_places(scene_of(run.directory.path))[1]["at"] is None


def test_a_run_that_kept_its_cuts_has_none(tmp_path: Path) -> None:
    run = SyntheticRun(root=tmp_path, run_id="plain").train(6)
    found = Run.open(run.directory.path)
    assert find_recuts(found.info, found.steps()) == ()
    assert cut_marks(found.info) == ()


def scene_of(path: Path) -> Scene:
    scene = watched(path).scene(newest=3)
    assert scene is not None
    return scene


def test_the_timeline_knows_where_the_cuts_changed_even_out_of_view(recut: Path) -> None:
    scene = scene_of(recut)
    began, changed = cut_places(scene)
    assert (began["step"], began["cuts"], began["at"]) == (0, "3, 6, 8", 0.0)
    step = scene.steps[scene.steps["step"] == 10].iloc[0]
    assert (changed["step"], changed["cuts"]) == (10, "4, 7, 9")
    header, _, _ = decode(build_message(scene, None, Jump(token="run/1")))
    assert header["cuts"] == [began, changed]
    assert changed["at"] == pytest.approx((step["start_ns"] - scene.start_ns) / 1e3)


def test_the_exported_page_tells_of_the_recut(recut: Path) -> None:
    page = page_text(Run.open(recut))
    assert "Cut anew before step 10: cuts [3, 6, 8] -&gt; [4, 7, 9], predicted 106.4 ms a step" in page
