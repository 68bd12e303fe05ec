import pytest

from pptoolkit.errors import ConfigError, PlanError
from pptoolkit.planner.cost_profile import CostLine, CostProfile, LayerProfile, fit_line
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.search import SearchSpace
from pptoolkit.planner.suggest import suggest
from pptoolkit.telemetry import RunInfo


@pytest.mark.parametrize(("fixed", "slope"), [(0.003, 0.001), (0.0, 0.002), (0.004, 0.0)])
def test_the_fixed_and_the_per_sample_part_are_told_apart(fixed, slope):
    line = fit_line([1, 2, 4, 8], [fixed + slope * n for n in (1, 2, 4, 8)])
    assert (line.fixed_s, line.per_sample_s) == pytest.approx((fixed, slope), abs=1e-9)


def test_neither_part_is_ever_negative():
    assert fit_line([1, 2, 4], [0.001, 0.003, 0.007]).fixed_s == 0.0
    assert fit_line([1, 2, 4], [0.004, 0.003, 0.002]).per_sample_s == 0.0
    assert fit_line([4], [0.008]) == CostLine(0.0, 0.002)
    with pytest.raises(ValueError, match="make no line"):
        fit_line([], [])


def profile(times=(9, 3, 4, 8, 2, 6), fixed=0.2, **changes):
    layers = tuple(
        LayerProfile(
            name=f"l{i}",
            forward=CostLine(fixed * t / 1e3, (1 - fixed) * t / 8e3, 0.01),
            backward=CostLine(2 * fixed * t / 1e3, 2 * (1 - fixed) * t / 8e3, 0.01),
            backward_input=CostLine(fixed * t / 1e3, (1 - fixed) * t / 8e3, 0.01),
            optimizer_s=1e-4,
            parameter_bytes=1000,
            optimizer_bytes=3000,
            activation_bytes=500.0,
            boundary_bytes=64.0,
        )
        for i, t in enumerate(times)
    )
    return CostProfile(**{"name": "p", "fingerprint": "0" * 16, "batch_size": 64, "sizes": (4, 8, 16), "layers": layers, **changes})


def test_a_profile_is_read_back_as_it_was_written(tmp_path):
    assert CostProfile.load(profile().save(tmp_path / "p.json")) == profile()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 99}', '{"version": 1, "layers": [{}]}'])
def test_what_is_no_profile_says_so(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(ConfigError, match="no profile that this release reads"):
        CostProfile.load(tmp_path / "p.json")
    with pytest.raises(ConfigError, match="there is no profile"):
        CostProfile.load(tmp_path / "none.json")


def test_layer_times_follow_the_micro_batch_by_their_line():
    measured = profile().measured_step(ranks=2, micro_batches=8)
    assert measured.layers.layers[0].forward.median == pytest.approx(0.009)
    plan = measured.plan.evolve(micro_batches=16)
    assert measured.layer_times(plan)[0][0] == pytest.approx(0.2 * 0.009 + 0.8 * 0.009 / 2)
    assert measured.backward_input_share == pytest.approx(0.5)
    assert measured.state_bytes_ratio == 3.0


def test_a_plan_is_made_before_any_run():
    measured = profile(times=(9, 8, 4, 3, 2, 6)).measured_step(ranks=2, micro_batches=8)
    info = RunInfo(run_id="p", layers=tuple(f"l{i}" for i in range(6)), plan=measured.plan.to_dict(), ranks=2)
    found = suggest(measured, info, space=SearchSpace(schedules=("1f1b",), micro_batches=(8, 16)))
    assert found.is_profile
    assert found[0].step_time_s < found.step_time_s
    assert found[0].low_s < found[0].step_time_s < found[0].high_s
    assert found[0].plan.origin.note == "profile"
    assert Predictor(measured, resize=True).replay_error_ratio == pytest.approx(0.0)


def test_where_equal_layer_counts_are_best_they_are_given_as_the_plan():
    measured = profile().measured_step(ranks=2, micro_batches=8)
    info = RunInfo(run_id="p", layers=tuple(f"l{i}" for i in range(6)), plan=measured.plan.to_dict(), ranks=2)
    found = suggest(measured, info, space=SearchSpace(schedules=("1f1b",), micro_batches=(8,)))
    assert (found[0].plan.cuts, found[0].sentence) == ((3,), "equal layer counts are as good as any cut")


def test_micro_batches_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(PlanError, match="7 micro-batches do not divide the batch of 64"):
        profile().measured_step(ranks=2, micro_batches=7)


def test_links_of_a_known_bandwidth_cost_time():
    slow, free = (profile(bandwidth=b).measured_step(ranks=2, micro_batches=8) for b in (1e4, 0.0))
    assert slow.step_time.median > free.step_time.median
