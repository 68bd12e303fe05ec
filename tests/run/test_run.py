import json
import subprocess
import sys
import time

import numpy as np
import pytest

from pptoolkit.analysis.liveness import RunState
from pptoolkit.errors import RunError
from pptoolkit.plan import Plan
from pptoolkit.run import Run
from pptoolkit.telemetry import EventWriter, RunDirectory, RunInfo, RunStatus, StepSummary
from pptoolkit.telemetry.heartbeat import Heartbeat
from pptoolkit.telemetry.scalars import ScalarWriter
from tests.analysis.synthetic_run import Truth, synthetic_events, true_step_s, write_run

TRUTH = Truth(forward_s=[0.009, 0.002, 0.002, 0.002], cuts=[2], noise=0.01)


def empty_run(path, **changes):
    info = RunInfo(
        run_id="r",
        plan=Plan(cuts=(2,), micro_batches=8).to_dict(),
        layers=("a", "b", "c", "d"),
        **{"ranks": 2, "stage_to_rank": (0, 1), **changes},
    )
    return RunDirectory.create(path, info)


def test_a_finished_run_is_reported_whole(tmp_path):
    report = write_run(tmp_path / "run", TRUTH).report()
    assert (report.run_id, report.state, report.steps_done, report.usable_steps) == ("run", "finished", 24, 23)
    assert report.step_time.median == pytest.approx(true_step_s(TRUTH, (2,)), rel=0.02)
    assert report.samples_per_s == pytest.approx(32 / report.step_time.median)
    assert report.tokens_per_s == pytest.approx(512 / report.step_time.median)
    assert report.loss == pytest.approx(5.0 / 24)
    assert report.skipped_steps == {"first use of a shape": 1}
    assert report.missing == ()
    assert abs(report.replay_error_ratio) < 0.02
    assert report.verdict.stage == 0
    assert report.prediction is None


def test_the_report_is_json_with_a_version(tmp_path):
    body = json.loads(json.dumps(write_run(tmp_path / "run", TRUTH).report().to_dict(), allow_nan=False))
    assert body["version"] == 1
    assert [stage["layers"] for stage in body["stages"]] == [[0, 2], [2, 4]]
    assert set(body["bubble"]) == {"ratio", "per_rank", "schedule_ratio"}


def test_there_must_be_a_run(tmp_path):
    with pytest.raises(RunError, match="there is no run at"):
        Run.open(tmp_path / "nothing")


def test_a_run_without_data_yet_reports_politely(tmp_path):
    empty_run(tmp_path / "r")
    run = Run.open(tmp_path / "r")
    report = run.report()
    assert run.state is RunState.WAITING
    assert (report.step_time, report.bubble, report.verdict, report.stages, report.accounting) == (None, None, None, (), ())
    assert report.missing == ("no rank has written events yet; they come with the first steps",)
    assert not run.suggest().no_change.conclusive
    assert run.timeline().empty
    assert run.scalars().empty
    json.dumps(report.to_dict(), allow_nan=False)


def test_a_missing_rank_is_named_and_the_others_can_be_seen(tmp_path):
    run = write_run(tmp_path / "run", Truth(**{**vars(TRUTH), "silent_ranks": [1]}))
    report = run.report()
    assert report.usable_steps == 0
    assert report.missing[0].startswith("ranks without events: 1;")
    assert set(run.timeline()["rank"]) == {0}


def test_polling_fetches_only_what_is_new(tmp_path):
    directory = empty_run(tmp_path / "r", schedule="1f1b", micro_batches=8)
    writers = [EventWriter(directory, rank=rank) for rank in (0, 1)]
    scalars = ScalarWriter(directory, rank=1)
    ranks = synthetic_events(TRUTH)
    run = Run.open(tmp_path / "r")
    run.poll()
    assert not run.poll()
    for last in (10, 20):
        for writer, events in zip(writers, ranks, strict=True):
            writer.append([e for e in events if last - 10 <= e.step < last])
            writer.flush()
        scalars.append([StepSummary(step=last, loss=1.0).to_line(step_time_s=0.1)])
        assert run.report().steps_done == last - 10  # nothing is read behind the reader's back
        assert run.poll()
        assert not run.poll()
        assert run.report().steps_done == last
        assert run.report().loss == 1.0


def test_events_are_read_from_disk_once(tmp_path):
    run = write_run(tmp_path / "run", TRUTH)
    rows = len(run.timeline())
    for path in run.directory.events_path.iterdir():
        path.unlink()
    run.poll()
    assert len(run.timeline()) == rows
    assert run.report().usable_steps == 23


def test_a_window_of_steps_can_be_chosen(tmp_path):
    timeline = write_run(tmp_path / "run", TRUTH).timeline(steps=(3, 5))
    assert set(timeline["step"]) == {3, 4}
    assert timeline["start_ns"].is_monotonic_increasing


def test_many_small_reads_give_the_same_report_as_one(tmp_path):
    whole = write_run(tmp_path / "whole", TRUTH).report()
    directory = RunDirectory.create(tmp_path / "pieces", Run.open(tmp_path / "whole").info)
    run = Run.open(tmp_path / "pieces")
    for rank, events in enumerate(synthetic_events(TRUTH)):
        writer = EventWriter(directory, rank=rank)
        for part in np.array_split(np.array(events), 300):
            writer.append(part)
            writer.flush()
            run.poll()
    found = run.report()
    assert found.stages == whole.stages
    assert found.accounting == whole.accounting
    assert found.verdict == whole.verdict


def test_a_torn_event_file_costs_its_tail_and_no_more(tmp_path):
    run = write_run(tmp_path / "run", TRUTH)
    directory = RunDirectory.create(tmp_path / "torn", run.info)
    for rank, events in enumerate(synthetic_events(TRUTH)):
        writer = EventWriter(directory, rank=rank)
        for step in range(TRUTH.steps):
            writer.append([e for e in events if e.step == step])
            writer.flush()
    path = directory.segment_path(1, 0, 0)
    path.write_bytes(path.read_bytes()[:-100])
    assert Run.open(tmp_path / "torn").report().usable_steps == 22


@pytest.mark.parametrize(
    ("status", "age_s", "state"),
    [
        (RunStatus.RUNNING, 1.0, RunState.RUNNING),
        (RunStatus.RUNNING, 60.0, RunState.STALLED),
        (RunStatus.FAILED, 60.0, RunState.FAILED),
        (RunStatus.STOPPED, 1.0, RunState.STOPPED),
    ],
)
def test_the_state_follows_status_and_heartbeats(tmp_path, status, age_s, state):
    now = time.time()
    directory = empty_run(tmp_path / "r", status=status, created_unix_s=now - 100)
    for rank in (0, 1):
        Heartbeat(rank=rank, unix_s=now - age_s, step=3, op="recv", op_start_unix_s=now - age_s).write(directory)
    run = Run.open(tmp_path / "r")
    assert run.state is state
    assert [beat.rank for beat in run.heartbeats()] == [0, 1]
    assert run.report().state == state.value


def test_a_run_json_that_vanishes_under_a_reader_changes_nothing(tmp_path):
    run = write_run(tmp_path / "run", TRUTH)
    run.directory.info_path.unlink()
    run.poll()
    assert run.report().usable_steps == 23


def test_reading_a_run_needs_no_torch(tmp_path):
    write_run(tmp_path / "run", TRUTH)
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from pptoolkit.run import Run\n"
        f"run = Run.open({str(tmp_path / 'run')!r}); run.report(); print(run.suggest()[0].plan.cuts)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.returncode) == ("(1,)", 0), done.stderr


def test_replicas_are_measured_together(tmp_path):
    info = {"ranks": 4, "replicas": 2, "plan": {**TRUTH.plan.to_dict(), "replicas": 2}}
    run = write_run(tmp_path / "run", TRUTH, info_changes=info)
    for pipeline_rank, events in enumerate(synthetic_events(Truth(**{**vars(TRUTH), "seed": 1}))):
        writer = EventWriter(run.directory, rank=2 + pipeline_rank, replica=1)
        writer.append(events)
        writer.close()
    report = run.report()
    assert report.usable_steps == 23
    assert [row.rank for row in report.stages] == [0, 1]
    assert report.stages[0].compute_s.median == pytest.approx(8 * 0.033, rel=0.02)
    assert len(report.accounting) == 4
    assert report.verdict.stage == 0
    assert abs(report.replay_error_ratio) < 0.03
    assert run.suggest()[0].plan.cuts == (1,)
    assert run.suggest()[0].plan.replicas == 2
