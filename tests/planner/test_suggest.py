import json
import random
from itertools import combinations

import pytest

from pptoolkit.errors import PlanError, RunError
from pptoolkit.plan import Plan
from tests.analysis.synthetic_run import FINGERPRINT, Truth, true_step_s, write_run

# Forward and backward of a layer together take these milliseconds.
HEAVY_FIRST = [25, 5, 5, 5, 5, 5, 5, 5]


def of_ms(layers_ms, **more):
    return Truth(forward_s=[ms / 3e3 for ms in layers_ms], **more)


def best_of_all(truth):
    return min(true_step_s(truth, cuts) for cuts in combinations(range(1, truth.layers), len(truth.cuts)))


def test_a_heavy_first_layer_gets_two_layers_against_six(tmp_path):
    truth = of_ms(HEAVY_FIRST, cuts=[4], noise=0.02, transfer_s=0.0005)
    found = write_run(tmp_path / "run", truth).suggest()
    first = found[0]
    assert first.plan.cuts == (2,)
    assert first.gain_ratio >= 0.15
    assert first.step_time_s == pytest.approx(true_step_s(truth, (2,)), rel=0.03)
    assert first.low_s < true_step_s(truth, (2,)) < first.high_s
    assert first.sentence.startswith("move block2 and block3 from stage 0 to stage 1: stage 0 spends 4")
    assert [(s.layers_before, s.layers_after) for s in first.stages] == [((0, 4), (0, 2)), ((4, 8), (2, 8))]
    assert [s.compute_after_s for s in first.stages] == pytest.approx([0.030, 0.030], rel=0.02)
    assert first.baselines["uniform"] == pytest.approx(found.step_time_s, rel=0.01)


def test_the_suggested_plan_is_ready_to_save_and_says_where_it_comes_from(tmp_path):
    plan = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4])).suggest()[0].plan
    loaded = Plan.load(plan.save(tmp_path / "plan.toml"))
    assert (loaded.cuts, loaded.fingerprint, loaded.micro_batches) == ((2,), FINGERPRINT, 8)
    assert loaded.origin.run == "run"
    assert loaded.prediction.low_s < loaded.prediction.step_time_s < loaded.prediction.baseline_step_time_s


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("layers", [8, 12])
def test_random_costs_on_4_ranks_end_within_1_percent_of_the_best_of_all_cuts(tmp_path, layers, seed):
    generator = random.Random(1000 * layers + seed)
    costs = [generator.uniform(2, 20) for _ in range(layers)]
    cuts = [layers // 4 * k for k in (1, 2, 3)]
    truth = of_ms(costs, cuts=cuts, noise=0.01, transfer_s=0.0003, data_s=0.001, after_s=0.002)
    found = write_run(tmp_path / "run", truth).suggest()
    chosen = found[0].plan.cuts if len(found) else tuple(cuts)
    reached = true_step_s(truth, chosen)
    # Where nothing is suggested, what is left to gain lies within the noise.
    assert reached <= best_of_all(truth) * (1.01 if len(found) else 1.05)
    if len(found):
        assert found[0].low_s < reached < found[0].high_s
        assert [s.step_time_s for s in found] == sorted(s.step_time_s for s in found)


@pytest.mark.parametrize("seed", range(6))
def test_a_balanced_run_with_3_percent_noise_is_left_alone(tmp_path, seed):
    truth = of_ms([15] * 8, cuts=[2, 4, 6], noise=0.03, transfer_s=0.001, after_s=0.004, seed=seed)
    found = write_run(tmp_path / "run", truth).suggest()
    assert len(found) == 0
    assert found.no_change.conclusive
    assert "already the best" in found.no_change.reason or "promise" in found.no_change.reason
    with pytest.raises(PlanError, match="no suggestion to take"):
        found[0]


def test_measured_time_wins_over_parameters(tmp_path):
    # A large embedding that costs next to nothing, and small layers that cost much.
    truth = of_ms([0.5, 10, 10, 10, 10, 10], cuts=[1], parameter_bytes=[400_000_000] + [1000] * 5, noise=0.02)
    found = write_run(tmp_path / "run", truth).suggest()
    # Stages of 30.5 and 20 ms beat the even 20.5 and 30: the last stage is the one that the first waits for when the pipeline fills.
    assert found[0].plan.cuts == (4,)
    assert true_step_s(truth, (4,)) == best_of_all(truth)
    assert found.baselines["by_parameters"] == pytest.approx(true_step_s(truth, (1,)), rel=0.03)


def test_a_slow_first_step_does_not_disturb_the_suggestion(tmp_path):
    quick, slow = (
        write_run(tmp_path / str(factor), of_ms(HEAVY_FIRST, cuts=[4], noise=0.02, first_step_factor=factor)).suggest()
        for factor in (1.0, 40.0)
    )
    assert quick[0].plan.cuts == slow[0].plan.cuts == (2,)
    assert slow[0].step_time_s == pytest.approx(quick[0].step_time_s, rel=1e-6)


@pytest.mark.parametrize(
    ("truth", "conclusive", "words"),
    [
        (of_ms(HEAVY_FIRST, cuts=[]), True, "one stage"),
        (of_ms(HEAVY_FIRST, cuts=[4], steps=4), False, "too few to plan from"),
        (of_ms(HEAVY_FIRST, cuts=[4], sampled=False), False, "never timed alone; train some more steps"),
        (of_ms(HEAVY_FIRST, cuts=[4], steps=1), False, "no step is complete"),
        (of_ms(HEAVY_FIRST, cuts=[4], silent_ranks=[1]), False, "ranks without events: 1"),
    ],
)
def test_what_cannot_be_planned_says_why(tmp_path, truth, conclusive, words):
    found = write_run(tmp_path / "run", truth).suggest()
    assert len(found) == 0
    assert found.no_change.conclusive is conclusive
    assert words in found.no_change.reason


def test_a_schedule_that_this_release_cannot_build_is_said_and_not_raised(tmp_path):
    run = write_run(
        tmp_path / "run",
        of_ms(HEAVY_FIRST, cuts=[4]),
        info_changes={"schedule": "dream", "plan": {"cuts": [4], "schedule": "dream", "micro_batches": 8}},
    )
    found = run.suggest()
    assert "dream" in found.no_change.reason
    assert run.report().replay_error_ratio is None


def test_suggestions_json_and_layers_arrow_are_written_whole(tmp_path):
    run = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4]))
    found = run.save_suggestions()
    body = json.loads(run.directory.suggestions_path.read_text())
    assert body == json.loads(json.dumps(found.to_dict()))
    assert body["suggestions"][0]["plan"]["cuts"] == [2]
    assert body["no_change"] is None
    assert run.directory.layers_path.is_file()


def test_suggestions_that_cannot_be_written_are_a_run_error(tmp_path):
    found = write_run(tmp_path / "run", of_ms(HEAVY_FIRST, cuts=[4])).suggest()
    with pytest.raises(RunError, match="cannot write the suggestions"):
        found.save(tmp_path / "gone" / "suggestions.json")
