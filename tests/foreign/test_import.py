"""Traces of other shapes and other root causes, made with a known truth."""

import time

import pandas as pd
import pytest

from pptoolkit.errors import DataError, PlanError, RunError
from pptoolkit.foreign import import_trace
from pptoolkit.run import Run
from tests.foreign.trace_maker import Job, make_trace


def imported(tmp_path, job, **more):
    path = tmp_path / "trace.parquet"
    make_trace(job).to_parquet(path)
    return Run.open(import_trace(path, tmp_path / "run", **more).path)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
def test_the_schedule_is_seen_and_the_steps_are_replayed(tmp_path, schedule):
    run = imported(tmp_path, Job(schedule=schedule, micro_batches=8))
    report = run.report()
    assert run.info.schedule == schedule
    assert run.info.stages == (8 if schedule == "interleaved-1f1b" else 4)
    assert abs(report.causes.replay_error_ratio) < 0.005
    assert abs(report.replay_error_ratio) < 0.02


def test_an_order_that_has_no_name_is_kept_as_a_file(tmp_path):
    job = Job(replicas=1, steps=8)
    trace = make_trace(job)
    swapped = trace["mb_id"].replace({0: 1, 1: 0})
    trace["mb_id"] = swapped
    trace.to_parquet(tmp_path / "t.parquet")
    run = Run.open(import_trace(tmp_path / "t.parquet", tmp_path / "run").path)
    assert run.info.schedule.endswith("schedule.csv")
    assert run.report().usable_steps == 8
    assert abs(run.report().causes.replay_error_ratio) < 0.01


@pytest.mark.parametrize("stage", range(4))
def test_a_stage_with_more_work_on_all_replicas_is_more_work(tmp_path, stage):
    verdict = imported(tmp_path, Job(stage_factor={stage: 1.4})).report().verdict
    assert (verdict.stage, verdict.cause, len(verdict.findings)) == (stage, "more_work", 1)


@pytest.mark.parametrize(("replica", "rank"), [(0, 0), (1, 2), (0, 3)])
def test_a_stage_that_is_slow_on_one_replica_only_is_a_slow_device(tmp_path, replica, rank):
    verdict = imported(tmp_path, Job(device_factor={(replica, rank): 1.4})).report().verdict
    assert (verdict.stage, verdict.cause) == (rank, "slower_device")
    assert [finding.rank for finding in verdict.findings] == [4 * replica + rank]


def test_micro_batches_of_uneven_length_are_told_from_jitter(tmp_path):
    uneven = imported(tmp_path, Job(micro_batch_spread=0.25)).report().verdict
    (tmp_path / "2").mkdir()
    noisy = imported(tmp_path / "2", Job(noise=0.25)).report().verdict
    assert uneven.cause == "uneven_micro_batches"
    assert noisy.cause == "jitter"


@pytest.mark.parametrize("told", [False, True])
def test_pauses_are_found_with_their_rank_whether_the_trace_tells_of_them_or_not(tmp_path, told):
    verdict = imported(tmp_path, Job(pause_s=0.5, pauses_told=told)).report().verdict
    assert (verdict.cause, verdict.rank, len(verdict.findings)) == ("pause", 1, 1)


@pytest.mark.parametrize("stage", [0, 2])
def test_a_stage_that_is_slow_in_forward_only_is_named_with_the_pass(tmp_path, stage):
    verdict = imported(tmp_path, Job(forward_factor={stage: 1.5}, noise=0.05)).report().verdict
    assert (verdict.stage, verdict.cause, verdict.kind, len(verdict.findings)) == (stage, "more_work", "forward", 1)


@pytest.mark.parametrize("link", [(1, 2), (2, 1), (0, 1)])
def test_a_slow_link_is_named_with_its_direction(tmp_path, link):
    verdict = imported(tmp_path, Job(link_s={link: 0.05}, micro_batches=8, noise=0.05)).report().verdict
    assert [(finding.cause, finding.link) for finding in verdict.findings] == [("slow_link", link)]


def test_two_causes_are_two_findings_the_dearer_one_first(tmp_path):
    job = Job(stage_factor={3: 1.3}, micro_batches=8, noise=0.05, pause_s=0.4, pause_every=3, pauses_told=True)
    findings = imported(tmp_path, job).report().verdict.findings
    assert [(finding.cause, finding.rank) for finding in findings] == [("more_work", 3), ("pause", 1)]
    assert findings[0].cost_ratio > findings[1].cost_ratio > 0.02


@pytest.mark.parametrize("seed", range(5))
def test_a_healthy_job_gets_no_verdict(tmp_path, seed):
    verdict = imported(tmp_path, Job(noise=0.02, seed=seed)).report().verdict
    assert verdict.findings == ()


_LARGE = {"replicas": 16, "ranks": 8, "micro_batches": 16, "steps": 11}


@pytest.mark.parametrize(
    ("more", "cause", "place"),
    [
        pytest.param({"stage_factor": {7: 1.3}}, "more_work", 7, id="more work"),
        pytest.param({"device_factor": {(5, 3): 1.4}}, "slower_device", 43, id="slow worker", marks=pytest.mark.slow),
        pytest.param({"forward_factor": {2: 1.6}}, "more_work", 2, id="slow forward", marks=pytest.mark.slow),
        pytest.param({"link_s": {(4, 5): 0.05}}, "slow_link", (4, 5), id="slow link", marks=pytest.mark.slow),
        pytest.param({"pause_s": 0.4, "pause_every": 2, "pauses_told": True}, "pause", 1, id="garbage", marks=pytest.mark.slow),
        pytest.param({"micro_batch_spread": 0.25}, "uneven_micro_batches", None, id="lengths", marks=pytest.mark.slow),
    ],
)
def test_a_trace_of_128_ranks_and_117000_ops_is_read_and_reported_in_seconds(tmp_path, more, cause, place):
    trace = make_trace(Job(**_LARGE, **more))
    assert len(trace) > 117_000
    trace.to_parquet(tmp_path / "t.parquet")
    begin = time.process_time()
    report = Run.open(import_trace(tmp_path / "t.parquet", tmp_path / "run").path).report()
    # Processor time, so that a busy machine does not count; ten times what it takes.
    assert time.process_time() - begin < 60
    (finding,) = report.verdict.findings
    assert finding.cause == cause
    assert place in (finding.stage, finding.rank, finding.link)
    assert abs(report.causes.replay_error_ratio) < 0.005


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.drop(columns="gmc"), "no column 'gmc'"),
        (lambda t: t.iloc[:0], "no rows"),
        (lambda t: t.assign(duration=-1.0), "must be seconds"),
        (lambda t: t[t["optype"] != "forward-compute"].assign(optype="sleep"), "no forward-compute"),
        (lambda t: t[~((t["optype"] == "backward-compute") & (t["stage"] == 1))], "make no schedule"),
    ],
)
def test_a_trace_that_cannot_be_read_says_what_is_wrong(tmp_path, change, words):
    change(make_trace(Job(steps=2))).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match=words):
        import_trace(tmp_path / "t.parquet", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_file_that_is_no_trace_and_one_that_is_not_there(tmp_path):
    (tmp_path / "t.parquet").write_text("hello")
    with pytest.raises(DataError, match="cannot read the trace"):
        import_trace(tmp_path / "t.parquet", tmp_path / "run")
    with pytest.raises(DataError, match="there is no trace"):
        import_trace(tmp_path / "no.parquet", tmp_path / "run")


def test_a_csv_of_the_same_form_is_read_too(tmp_path):
    make_trace(Job(steps=6)).to_csv(tmp_path / "t.csv", index=False)
    assert Run.open(import_trace(tmp_path / "t.csv", tmp_path / "run").path).report().usable_steps == 6


def test_a_schedule_that_does_not_fit_and_a_run_that_is_there_are_refused(tmp_path):
    make_trace(Job(steps=2)).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(PlanError, match="does not fit the trace"):
        import_trace(tmp_path / "t.parquet", tmp_path / "run", schedule="zbv")
    import_trace(tmp_path / "t.parquet", tmp_path / "run", schedule="1f1b")
    with pytest.raises(RunError, match="not empty"):
        import_trace(tmp_path / "t.parquet", tmp_path / "run")


def test_steps_need_not_follow_each_other(tmp_path):
    trace = make_trace(Job(steps=12))
    trace["step"] = trace["step"].map({step: 7 * step for step in range(100, 112)})
    trace.to_parquet(tmp_path / "t.parquet")
    report = Run.open(import_trace(tmp_path / "t.parquet", tmp_path / "run").path).report()
    assert (report.usable_steps, report.verdict.findings) == (12, ())
    assert pd.Index(Run.open(tmp_path / "run").steady().windows.index)[1] == 707
