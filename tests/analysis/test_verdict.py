import pytest

from tests.analysis.synthetic_run import Truth, write_run


@pytest.mark.parametrize("slow", range(4))
@pytest.mark.parametrize("part", ["forward", "backward"])
def test_the_stage_with_more_work_is_named_not_the_ones_that_wait_for_it(tmp_path, slow, part):
    forward, backward = [0.004] * 4, [0.008] * 4
    (forward if part == "forward" else backward)[slow] += 0.004
    truth = Truth(forward_s=forward, backward_s=backward, cuts=[1, 2, 3], noise=0.03, transfer_s=0.0005, seed=slow)
    verdict = write_run(tmp_path / "r", truth).report().verdict
    assert (verdict.stage, verdict.rank, verdict.kind) == (slow, slow, part)
    assert verdict.confidence > 0.9
    assert f"rank {slow} works" in verdict.evidence


@pytest.mark.parametrize("seed", range(6))
def test_a_balanced_run_with_3_percent_noise_gets_no_verdict(tmp_path, seed):
    truth = Truth(forward_s=[0.005] * 8, cuts=[2, 4, 6], noise=0.03, transfer_s=0.001, after_s=0.004, seed=seed)
    verdict = write_run(tmp_path / "r", truth).report().verdict
    assert verdict.stage is None
    assert verdict.confidence == 0
    assert verdict.evidence.startswith("nothing stands out")


def test_a_slow_loader_on_rank_0_is_a_matter_of_data(tmp_path):
    truth = Truth(forward_s=[0.005] * 4, cuts=[1, 2, 3], data_s=0.05, noise=0.03)
    verdict = write_run(tmp_path / "r", truth).report().verdict
    assert (verdict.rank, verdict.kind) == (0, "data")


def test_two_equally_loaded_stages_are_both_named(tmp_path):
    truth = Truth(forward_s=[0.002, 0.008, 0.008, 0.002], cuts=[1, 2, 3], noise=0.02)
    verdict = write_run(tmp_path / "r", truth).report().verdict
    assert {verdict.stage, *verdict.also} == {1, 2}


def test_a_slow_first_step_changes_nothing(tmp_path):
    quick = Truth(forward_s=[0.005, 0.009], cuts=[1], noise=0.02)
    slow = Truth(forward_s=[0.005, 0.009], cuts=[1], noise=0.02, first_step_factor=50.0)
    reports = [write_run(tmp_path / str(i), truth).report() for i, truth in enumerate((quick, slow))]
    assert reports[0].step_time.median == pytest.approx(reports[1].step_time.median, rel=1e-6)
    assert reports[0].verdict.evidence == reports[1].verdict.evidence


def test_one_rank_is_no_pipeline(tmp_path):
    verdict = write_run(tmp_path / "r", Truth(forward_s=[0.005, 0.009], cuts=[])).report().verdict
    assert verdict.stage is None


def test_few_steps_are_too_few(tmp_path):
    verdict = write_run(tmp_path / "r", Truth(forward_s=[0.005, 0.009], cuts=[1], steps=4)).report().verdict
    assert verdict.stage is None
    assert "too few" in verdict.evidence
