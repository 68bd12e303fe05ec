"""One fault at a time, on stage after stage: it is named with its place, and nothing else is."""

import random

import pytest

from pptoolkit.schedule import ActionKind
from tests.analysis.synthetic_run import Truth, write_run

LAYERS = [0.005] * 8
CUTS = [2, 4, 6]
FORWARD, BACKWARD = ActionKind.FORWARD, ActionKind.BACKWARD


def verdict_of(tmp_path, **changes):
    truth = Truth(**{"forward_s": LAYERS, "cuts": CUTS, "noise": 0.02, "transfer_s": 0.0005, "after_s": 0.003, "steps": 30, **changes})
    return write_run(tmp_path / "r", truth).report().verdict


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("kind", [FORWARD, BACKWARD])
def test_one_pass_that_is_longer_is_more_work(tmp_path, stage, kind):
    verdict = verdict_of(tmp_path, op_factor=lambda _, a: 1.8 if a.stage == stage and a.kind is kind else 1.0)
    assert (verdict.stage, verdict.kind, verdict.cause) == (stage, kind.name.lower(), "more_work")
    assert len(verdict.findings) == 1


@pytest.mark.parametrize("stage", range(4))
def test_layers_that_run_faster_elsewhere_mean_a_slow_device(tmp_path, stage):
    verdict = verdict_of(tmp_path, op_factor=lambda _, a: 1.5 if a.stage == stage else 1.0)
    assert (verdict.stage, verdict.cause) == (stage, "slower_device")
    assert "layers of the same kind take 1.5" in verdict.evidence


@pytest.mark.parametrize(("cuts", "stage"), [([3, 4, 6], 0), ([1, 4, 6], 1), ([2, 3, 6], 2), ([2, 4, 5], 3)])
def test_more_layers_mean_more_work(tmp_path, cuts, stage):
    verdict = verdict_of(tmp_path, cuts=cuts)
    assert (verdict.stage, verdict.cause) == (stage, "more_work")


@pytest.mark.parametrize("link", [(0, 1), (1, 2), (2, 3), (1, 0), (2, 1), (3, 2)])
def test_a_slow_link_is_named_with_its_direction(tmp_path, link):
    verdict = verdict_of(tmp_path, link_s={link: 0.02})
    assert (verdict.cause, verdict.findings[0].link, len(verdict.findings)) == ("slow_link", link, 1)


@pytest.mark.parametrize("stage", range(4))
def test_pauses_now_and_then_are_pauses(tmp_path, stage):
    def extra(step, action):
        return 0.12 if step % 6 == 3 and action.stage == stage and action.kind is FORWARD and action.micro_batch == step % 8 else 0.0

    verdict = verdict_of(tmp_path, op_extra_s=extra)
    assert (verdict.cause, verdict.rank, len(verdict.findings)) == ("pause", stage, 1)


@pytest.mark.parametrize("stage", range(4))
def test_one_stage_that_jitters_is_named(tmp_path, stage):
    def factor(step, action):
        return 1.0 + 0.5 * (((step * 7919 + action.micro_batch * 104729 + (action.kind is FORWARD) * 31) % 1000) / 500 - 1)

    verdict = verdict_of(tmp_path, op_factor=lambda step, a: factor(step, a) if a.stage == stage else 1.0)
    assert (verdict.cause, verdict.rank) == ("jitter", stage)


@pytest.mark.parametrize("stage", range(4))
def test_jitter_with_a_long_tail_is_no_work_although_its_mean_is_longer(tmp_path, stage):
    draw, drawn = random.Random(stage), {}

    def factor(step, action):
        if action.stage != stage or action.kind is not FORWARD:
            return 1.0
        return drawn.setdefault((step, action), draw.lognormvariate(0.0, 0.6))  # median 1, mean 1.2

    verdict = verdict_of(tmp_path, op_factor=factor, forward_s=[0.003] * 8, backward_s=[0.006] * 8, steps=40)
    assert [(finding.cause, finding.rank) for finding in verdict.findings] == [("jitter", stage)]


@pytest.mark.parametrize("stage", range(4))
def test_a_stage_that_jitters_and_has_more_work_is_told_both(tmp_path, stage):
    draw, drawn = random.Random(stage), {}

    def factor(step, action):
        if action.stage != stage:
            return 1.0
        return (1.8 if action.kind is BACKWARD else 1.0) * drawn.setdefault((step, action), draw.lognormvariate(0.0, 0.5))

    verdict = verdict_of(tmp_path, op_factor=factor, steps=40)
    assert {finding.cause for finding in verdict.findings} == {"jitter", "more_work"}


def test_a_loader_that_all_ranks_wait_for_is_a_matter_of_data(tmp_path):
    verdict = verdict_of(tmp_path, data_s=0.06)
    assert (verdict.cause, verdict.rank) == ("slow_loader", 0)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_said_of_a_healthy_run(tmp_path, seed):
    verdict = verdict_of(tmp_path, seed=seed, noise=0.03, data_s=0.001, action_overhead_s=0.0001)
    assert verdict.findings == ()
    assert verdict.title == "nothing stands out"


def test_a_device_that_becomes_slow_in_the_middle_is_judged_by_the_steps_since_then(tmp_path):
    run = write_run(
        tmp_path / "r",
        Truth(
            forward_s=[0.005] * 4,
            cuts=[1, 2, 3],
            noise=0.02,
            steps=90,
            micro_batches=4,
            op_factor=lambda step, a: 1.4 if a.stage == 1 and step >= 60 else 1.0,
        ),
    )
    report = run.report()
    assert [(change.rank, change.kind) for change in report.changes] == [(1, "both")]
    assert abs(report.changes[0].step - 60) <= 3
    assert report.changes[0].seen_step < 80
    assert report.changes[0].size_ratio == pytest.approx(0.4, abs=0.05)
    assert (report.verdict.stage, report.verdict.cause) == (1, "slower_device")
    assert report.causes.steps < 35


def test_one_pause_on_every_rank_is_what_a_young_process_does(tmp_path):
    def extra(step, action):
        return 0.3 if (step, action.micro_batch) == (2 + action.stage, 3) and action.kind is FORWARD else 0.0

    assert verdict_of(tmp_path, op_extra_s=extra).findings == ()


def test_pauses_that_come_again_on_all_ranks_are_the_machines(tmp_path):
    def extra(step, action):
        return 0.1 if step % 6 == action.stage and action.micro_batch == 3 * step % 8 and action.kind is FORWARD else 0.0

    verdict = verdict_of(tmp_path, op_extra_s=extra)
    assert [(finding.cause, finding.rank) for finding in verdict.findings] == [("pause", None)]
    assert verdict.title == "pauses on all ranks"


def test_one_rank_of_two_that_pauses_is_not_both_of_them(tmp_path):
    def extra(step, action):
        return 0.15 if step % 6 == 1 and action.stage == 1 and action.micro_batch == 3 * step % 8 and action.kind is FORWARD else 0.0

    verdict = verdict_of(tmp_path, cuts=[4], op_extra_s=extra)
    assert [(finding.cause, finding.rank) for finding in verdict.findings] == [("pause", 1)]
