"""What a report says of events that are not there: each loss counted, named, and survived."""

import json
import os
from pathlib import Path

import pytest

from pptoolkit.run import Run
from pptoolkit.telemetry import EventReader, Op, RunDirectory, RunInfo, StepSummary
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.session import Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings
from tests.analysis.synthetic_run import Truth, write_run

INFO = RunInfo(run_id="r", ranks=1, micro_batches=4, schedule="1f1b", status="running")
STEPS = 300


def train(run: RunDirectory, *, steps: int = STEPS, **settings: object) -> None:
    quick = {"port": None, "flush_s": 60.0, "heartbeat_s": 60.0, **settings}
    telemetry = Telemetry.start(TelemetrySettings(**quick), run, RankLayout.from_info(INFO, 0))  # type: ignore[arg-type]
    telemetry.add_clock(0, 0)
    for step in range(steps):
        telemetry.recorder.begin_step(step)
        for m in range(4):
            with telemetry.recorder.span(Op.FORWARD, stage=0, micro_batch=m):
                pass
        telemetry.recorder.end_step()
        telemetry.step_done(StepSummary(step=step, loss=1.0, samples=8))
        if step % 5 == 0:
            telemetry.flush(timeout_s=20)
    telemetry.close("finished")
    run.update_info(status="finished")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "r", INFO)


def test_old_files_make_room_and_what_they_held_is_counted_and_said(run: RunDirectory) -> None:
    bound = 1 << 16
    train(run, max_bytes=bound)
    kept = EventReader(run).read_all().to_pandas()
    assert sum(path.stat().st_size for path in run.events_path.iterdir()) <= bound
    steps = sorted(kept.loc[kept["op"] == int(Op.STEP), "step"])
    assert steps == list(range(steps[0], STEPS)), "the newest steps are there, without a gap"
    assert steps[0] > 0
    assert (kept["op"] == int(Op.CLOCK)).sum() == 1, "the clock reading of the first file is carried on"
    report = Run.open(run.path).report()
    assert report.steps_done == STEPS, "the scalars still know every step"
    gone = STEPS * 5 + 1 - len(kept)
    assert f"{gone:,} events of rank 0 were removed with the oldest files to stay below telemetry.max_bytes" in report.missing


def test_left_out_steps_are_counted_apart_from_losses(run: RunDirectory) -> None:
    train(run, steps=20, detail={"every": 10})
    report = Run.open(run.path).report()
    assert report.steps_done == 20
    assert f"{18 * 5} events of rank 0 are of steps that telemetry.every leaves out" in report.missing


def test_a_full_disk_is_said_in_the_report(run: RunDirectory) -> None:
    run.scalars_path(0, 0).symlink_to("/dev/full")
    train(run, steps=3)
    run.scalars_path(0, 0).unlink()  # reading /dev/full has no end
    assert any("3 events of rank 0 could not be written: the disk was full" in note for note in Run.open(run.path).report().missing)


def test_a_read_only_directory_can_be_read_reported_and_suggested_from(tmp_path: Path) -> None:
    write_run(tmp_path / "r", Truth(forward_s=[0.004, 0.004, 0.004, 0.012], cuts=[2]))
    for folder in [tmp_path / "r", *(tmp_path / "r").rglob("*")]:
        os.chmod(folder, 0o555 if folder.is_dir() else 0o444)
    found = Run.open(tmp_path / "r")
    assert found.report().steps_done == 24
    assert len(found.suggest())


def test_nul_bytes_and_a_missing_rank_are_said_and_the_rest_is_reported(tmp_path: Path) -> None:
    run = write_run(tmp_path / "r", Truth(forward_s=[0.004] * 6, cuts=[2, 4])).directory
    path = run.segment_path(1, 0, 0)
    path.write_bytes(path.read_bytes() + b"\0" * 4096)
    next(run.events_path.glob("rank-00002*")).unlink()
    report = Run.open(run.path).report()
    assert any("4096 damaged bytes were skipped" in note for note in report.missing)
    assert any(note.startswith("ranks without events: 2") for note in report.missing)


def test_a_wall_clock_that_is_set_back_in_mid_run_disturbs_nothing(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    real, begun = time.time, time.monotonic()
    shown = lambda: real() - (3600.0 if time.monotonic() - begun > 0.2 else 0.0)  # noqa: E731
    monkeypatch.setattr(time, "time", shown)
    telemetry = Telemetry.start(TelemetrySettings(port=None, heartbeat_s=0.05), run, RankLayout.from_info(INFO, 0))
    while time.monotonic() - begun < 0.5:
        telemetry.recorder.begin_step(telemetry.recorder.step + 1)
        with telemetry.recorder.span(Op.FORWARD, stage=0, micro_batch=0):
            time.sleep(0.01)
        telemetry.recorder.end_step()
        telemetry.step_done(StepSummary(step=telemetry.recorder.step, loss=1.0, samples=8))
    assert telemetry.flush(timeout_s=20)
    opened = Run.open(run.path)
    scalars, timeline = opened.scalars(), opened.timeline()
    assert scalars["unix_s"].is_monotonic_increasing is False, "the wall clock did go back"
    assert (scalars["step_time_s"].between(0.009, 20)).all()
    whole = timeline[timeline["op"] == int(Op.STEP)]
    assert whole["step"].tolist() == sorted(whole["step"])
    assert (whole["end_ns"] > whole["start_ns"]).all()
    assert opened.state.value == "running"
    assert telemetry.metrics.registry.get_sample_value("pptoolkit_last_step_timestamp_seconds") <= shown() + 1  # type: ignore[attr-defined]
    telemetry.close("finished")
    assert json.loads(run.heartbeat_path(0).read_text())["status"] == "finished"
