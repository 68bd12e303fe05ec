"""The few numbers of a run must be those of its report."""

from pathlib import Path

import pytest

from dashboard.data import WatchedRun
from tests.dashboard.synthetic import SyntheticRun


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_a_brief_says_what_the_report_says(tmp_path: Path, schedule: str) -> None:
    run = SyntheticRun(root=tmp_path, run_id="run", schedule=schedule, jitter=0.1).train(12)
    watched = WatchedRun(run.directory.path)
    watched.refresh()
    brief, report = watched.brief(), watched.report()
    assert report.step_time is not None
    assert report.bubble is not None
    assert brief.steps_done == report.steps_done == 12
    assert brief.loss == report.loss
    assert brief.step_time_s == pytest.approx(report.step_time.median)
    assert brief.bubble_ratio == pytest.approx(report.bubble.ratio.median)
    assert brief.samples_per_s == pytest.approx(report.samples_per_s)


def test_a_run_without_a_complete_step_has_no_numbers(tmp_path: Path) -> None:
    watched = WatchedRun(SyntheticRun(root=tmp_path, run_id="run").directory.path)
    watched.refresh()
    brief = watched.brief()
    assert (brief.steps_done, brief.loss, brief.step_time_s, brief.bubble_ratio, brief.samples_per_s) == (0, None, None, None, None)
