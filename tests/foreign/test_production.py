"""The published production trace: what its authors found must be found here."""

import json
from pathlib import Path

import pytest

from pptoolkit.cli.main import run as command
from pptoolkit.foreign import import_trace
from pptoolkit.run import Run

TRACE = Path(__file__).parents[2].parent / "shared" / "data" / "production" / "trace-ST.parquet"
pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason=f"the published trace is not at {TRACE}")


@pytest.fixture(scope="module")
def imported(tmp_path_factory):
    return Run.open(import_trace(TRACE, tmp_path_factory.mktemp("runs") / "production").path)


def test_the_run_says_what_ran(imported):
    info = imported.info
    assert (info.ranks, info.replicas, info.stages, info.schedule, info.micro_batches) == (8, 2, 4, "1f1b", 4)
    assert imported.report().usable_steps == 32
    assert imported.report().missing == ()


def test_both_replays_reproduce_the_measured_step(imported):
    report = imported.report()
    assert abs(report.replay_error_ratio) < 0.02
    assert abs(report.causes.replay_error_ratio) < 0.001


def test_the_slowdown_is_the_published_one(imported):
    found = imported.report().slowdown
    assert found.ratio == pytest.approx(1.179, rel=0.005)
    assert found.by_type["forward"] == pytest.approx(1.087, abs=0.005)
    assert found.by_type["backward"] == pytest.approx(1.074, abs=0.005)
    assert max(ratio for name, ratio in found.by_type.items() if name not in ("forward", "backward")) < 1.011
    assert found.by_stage[3] == pytest.approx(1.232, abs=0.005)
    assert all(0.975 < found.by_stage[rank] < 1.005 for rank in (0, 1, 2))
    assert found.launch_delay_ratio == pytest.approx(1.019, abs=0.002)


def test_the_last_stage_has_more_work_and_nothing_else_is_said(imported):
    verdict = imported.report().verdict
    assert (verdict.stage, verdict.cause, verdict.title) == (3, "more_work", "stage 3 has more work")
    assert len(verdict.findings) == 1
    assert imported.report().changes == ()
    forward, backward = verdict.passes["forward"], verdict.passes["backward"]
    assert forward.ratio == pytest.approx(140 / 67, rel=0.03)
    assert backward.ratio == pytest.approx(205 / 144, rel=0.03)
    assert "forward" in verdict.evidence
    assert "backward" in verdict.evidence


def test_the_bubble_is_split_without_a_rest(imported):
    report = imported.report()
    causes = report.causes
    assert sum(causes.ratios.values()) == pytest.approx(report.bubble.ratio.median, rel=0.02)
    assert abs(causes.ratios["unexplained"]) < 0.001
    assert causes.parts["imbalance"] > 0.1 * causes.step_time_s
    for rank, parts in causes.per_rank.items():
        assert sum(parts.values()) + causes.compute_per_rank[rank] == pytest.approx(causes.step_time_s, rel=1e-9)


def test_the_critical_path_is_as_long_as_the_step_and_runs_through_the_last_stage(imported):
    path = imported.report().critical_path
    assert sum(path.seconds.values()) == pytest.approx(imported.report().causes.step_time_s, rel=0.02)
    assert path.compute_share[3] > 0.6
    assert all(a.end_s == pytest.approx(b.start_s, abs=1e-9) for a, b in zip(path.pieces, path.pieces[1:], strict=False))


def test_the_commands_show_it(imported, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["import", str(TRACE)]) == 0
    assert command(["report", "trace-ST", "--json"]) == 0
    shown = capsys.readouterr().out
    body = json.loads(shown[shown.index("{") :])
    assert body["verdict"]["title"] == "stage 3 has more work"
    assert body["causes"]["waterfall"][0]["name"] == "compute"
    assert body["device"] == ""  # no trace says it
    assert command(["suggest", "trace-ST"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "the trace names no layers, only its 4 stages, so no other cut can be found" in said
    assert "pptoolkit profile" in said
    assert command(["apply", "trace-ST"]) == 1
    assert "names no layers" in capsys.readouterr().out
    assert command(["import", str(TRACE)]) == 2  # there is one already
