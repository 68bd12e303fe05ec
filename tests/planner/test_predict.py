import pytest

from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import PlanError
from pptoolkit.plan import Plan
from pptoolkit.planner.predict import MAX_REPLAY_ERROR, Predictor
from tests.analysis.synthetic_run import Truth, true_step_s, write_run

REAL = Truth(
    forward_s=[0.002, 0.004, 0.004, 0.004, 0.004, 0.009],
    cuts=[2, 4],
    noise=0.02,
    transfer_s=0.0006,
    send_s=0.0001,
    data_s=0.003,
    after_s=0.002,
    action_overhead_s=0.0002,
    steps=40,
    sampling_cost=0.0,
)


def predictor_of(tmp_path, truth):
    return Predictor(write_run(tmp_path / "run", truth).measured_step())


def test_the_replay_of_a_run_without_noise_is_its_measured_step(tmp_path):
    exact = Truth(
        forward_s=[0.002, 0.005, 0.003], cuts=[1, 2], transfer_s=0.001, send_s=0.0002, data_s=0.002, after_s=0.003, sampling_cost=0.0
    )
    assert predictor_of(tmp_path, exact).replay_error_ratio == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("joined_end", [True, False])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_the_replay_stays_within_3_percent_of_a_noisy_run_with_links_data_and_host_time(tmp_path, schedule, joined_end):
    truth = Truth(**{**vars(REAL), "schedule": schedule, "joined_end": joined_end})
    assert abs(predictor_of(tmp_path, truth).replay_error_ratio) < 0.03


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zbv", "dualpipev"])
def test_the_replay_of_any_schedule_is_its_measured_step(tmp_path, schedule):
    one_each = schedule in ("gpipe", "1f1b", "zb-h1")
    truth = Truth(
        forward_s=[0.002, 0.003, 0.004, 0.002, 0.005, 0.002, 0.003, 0.004],
        cuts=[2, 4, 6] if one_each else [1, 2, 3, 4, 5, 6, 7],
        ranks=4,
        schedule=schedule,
        transfer_s=0.0006,
        send_s=0.0001,
        data_s=0.003,
        after_s=0.002,
        sampling_cost=0.0,
        steps=8,
    )
    assert predictor_of(tmp_path, truth).replay_error_ratio == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "gpipe"])
def test_accumulated_passes_are_replayed_and_predicted(tmp_path, schedule):
    truth = Truth(**{**vars(REAL), "noise": 0.0, "schedule": schedule, "accumulation": 3, "micro_batches": 4, "steps": 10})
    predictor = predictor_of(tmp_path, truth)
    assert predictor.replay_error_ratio == pytest.approx(0.0, abs=1e-3)
    other = Plan(cuts=(1, 3), schedule=schedule, micro_batches=4)
    found = predictor.predict(other)
    assert found.step_time_s == pytest.approx(true_step_s(truth, (1, 3)), rel=0.01)
    assert found.low_s < true_step_s(truth, (1, 3)) < found.high_s
    # The ranks run on into the next pass: three passes take less than three steps.
    once = true_step_s(Truth(**{**vars(truth), "accumulation": 1}), (1, 3))
    assert found.step_time_s < 3 * once
    assert predictor.least_step_s(other) <= found.step_time_s


@pytest.mark.parametrize("cuts", [(1, 3), (2, 4), (3, 5), (1, 5), (4, 5)])
def test_other_cuts_are_predicted_as_the_simulator_knows_them_to_be(tmp_path, cuts):
    predictor = predictor_of(tmp_path, REAL)
    found = predictor.predict(Plan(cuts=cuts, micro_batches=8))
    truth = true_step_s(REAL, cuts)
    assert found.step_time_s == pytest.approx(truth, rel=0.03)
    assert found.low_s < truth < found.high_s
    assert predictor.least_step_s(found.plan) <= found.step_time_s
    assert sum(found.rank_compute_s) == pytest.approx(8 * sum(found.stage_compute_s), rel=0.01)


def test_another_schedule_is_predicted_too(tmp_path):
    truth = Truth(**{**vars(REAL), "schedule": "gpipe", "noise": 0.0})
    found = predictor_of(tmp_path, truth).predict(Plan(cuts=(2, 4), schedule="1f1b", micro_batches=8))
    assert found.step_time_s == pytest.approx(true_step_s(REAL, (2, 4)), rel=0.01)


def test_the_optimizer_follows_the_parameters_that_move(tmp_path):
    truth = Truth(
        forward_s=[0.004] * 4,
        cuts=[2],
        parameter_bytes=[8_000_000, 1_000_000, 1_000_000, 1_000_000],
        optimizer_s_per_mb=0.01,
        sampling_cost=0.0,
    )
    found = predictor_of(tmp_path, truth).predict(Plan(cuts=(1,), micro_batches=8))
    assert found.step_time_s == pytest.approx(true_step_s(truth, (1,)), rel=1e-3)


def test_more_layers_that_move_widen_the_interval(tmp_path):
    predictor = predictor_of(tmp_path, Truth(**{**vars(REAL), "noise": 0.1, "steps": 9}))
    own, other = (predictor.predict(Plan(cuts=cuts, micro_batches=8)) for cuts in ((2, 4), (1, 2)))
    assert own.high_s - own.low_s < other.high_s - other.low_s


def test_past_the_limit_of_the_replay_error_nothing_is_predicted(tmp_path):
    measured = write_run(tmp_path / "run", REAL).measured_step()
    median = measured.step_time.median * (1 + 2 * MAX_REPLAY_ERROR)
    off = type(measured)(
        **{name: getattr(measured, name) for name in measured.__slots__}
        | {"step_time": Interval(median=median, low=median, high=median, samples=30)}
    )
    with pytest.raises(PlanError, match=r"past 10% nothing is predicted"):
        Predictor(off).predict(Plan(cuts=(1, 2), micro_batches=8))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (Plan(cuts=(2, 4), micro_batches=4), "micro_batches=4 differs from the 8"),
        (Plan(cuts=(2, 9), micro_batches=8), "cut point 9"),
        (Plan(cuts=(2,), micro_batches=8), "2 stages for 3 ranks"),
    ],
)
def test_a_plan_that_cannot_be_predicted_from_this_run_is_refused(tmp_path, plan, words):
    with pytest.raises(PlanError, match=words):
        predictor_of(tmp_path, REAL).predict(plan)
