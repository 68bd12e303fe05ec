import json
import math

import pandas as pd
import pytest

from pptoolkit.cli.main import run as command
from pptoolkit.errors import RunError
from pptoolkit.planner.compare import compare, compare_losses
from tests.analysis.synthetic_run import Truth, true_step_s, write_run

UNEVEN = Truth(forward_s=[0.008, 0.002, 0.002, 0.002, 0.002, 0.002], cuts=[3], noise=0.02, steps=40)


def losses(values, attempt=0):
    return pd.DataFrame({"step": range(len(values)), "loss": values, "attempt": attempt, "rank": 0})


def test_the_second_run_achieves_what_the_first_ones_suggestion_promised(tmp_path):
    before = write_run(tmp_path / "before", UNEVEN)
    plan = before.suggest()[0].plan
    truth = Truth(**{**vars(UNEVEN), "cuts": list(plan.cuts), "seed": 1})
    after = write_run(tmp_path / "after", truth, info_changes={"plan": plan.to_dict(), "parent": "before"})
    found = compare(before, after)
    assert found.is_significant
    assert found.difference_s.high < 0
    assert found.gain_ratio == pytest.approx(1 - true_step_s(truth, plan.cuts) / true_step_s(UNEVEN, (3,)), abs=0.02)
    assert found.prediction.within
    assert abs(found.prediction.error_ratio) < 0.03
    assert found.prediction.origin == "before"
    assert (found.losses.steps, found.losses.max_relative_difference, found.losses.equal_digits) == (40, 0.0, 16)
    assert found.accounting["recv_wait"][2] < 0
    assert found.compute_ratio == pytest.approx(1.0, abs=0.02)
    json.dumps(found.to_dict(), allow_nan=False)
    assert after.report().prediction == found.prediction


def test_two_runs_of_the_same_plan_do_not_differ_significantly(tmp_path):
    runs = [write_run(tmp_path / str(seed), Truth(**{**vars(UNEVEN), "seed": seed})) for seed in (1, 2)]
    found = compare(*runs)
    assert not found.is_significant
    assert found.prediction is None


def test_a_promise_that_was_not_kept_is_said_so(tmp_path):
    before = write_run(tmp_path / "before", UNEVEN)
    plan = before.suggest()[0].plan
    slower = Truth(**{**vars(UNEVEN), "cuts": list(plan.cuts), "forward_s": [0.012, 0.003, 0.003, 0.003, 0.003, 0.003]})
    found = compare(before, write_run(tmp_path / "after", slower, info_changes={"plan": plan.to_dict()}))
    assert found.compute_ratio == pytest.approx(1.5, abs=0.05)  # the machine, not the plan
    check = found.prediction
    assert not check.within
    assert check.error_ratio == pytest.approx(0.5, abs=0.05)


def test_different_models_are_said_first_and_blamed_on_no_machine(tmp_path, capsys):
    before = write_run(tmp_path / "before", UNEVEN)
    slower = Truth(**{**vars(UNEVEN), "forward_s": [2 * f for f in UNEVEN.forward_s]})
    paths = {}
    for name, changes in {"other": {"fingerprint": "another"}, "same": {}}.items():
        after = write_run(tmp_path / name, slower, info_changes=changes)
        paths[name] = [str(run.directory.path) for run in (before, after)]
        assert compare(before, after).to_dict()["same_model"] == (name == "same")
    assert command(["compare", *paths["other"]]) == 0
    said = capsys.readouterr().out
    assert said.startswith("these runs train different models (other layers)")
    assert "machine itself" not in said
    assert command(["compare", *paths["same"]]) == 0
    said = capsys.readouterr().out
    assert "different models" not in said
    assert "machine itself was not the same" in " ".join(said.split())


def test_a_run_without_usable_steps_cannot_be_compared(tmp_path):
    good, empty = write_run(tmp_path / "a", UNEVEN), write_run(tmp_path / "b", Truth(**{**vars(UNEVEN), "steps": 1}))
    with pytest.raises(RunError, match="run b has no complete step"):
        compare(good, empty)


@pytest.mark.parametrize(
    ("second", "difference", "digits"),
    [
        ([2.0, 1.0], 0.0, 16),
        ([2.0, 1.00001], 1e-5, 5),
        ([2.0, 1.5], 1 / 3, 0),
        ([2.0, -1.0], 2.0, 0),
        ([2.0, math.nan], math.inf, 0),
    ],
)
def test_losses_agree_to_so_many_digits(second, difference, digits):
    frame = losses([2.0, 1.0])
    other = losses(second)
    if math.isnan(second[1]):  # a loss that is not a number is still a loss, unlike one that was not seen
        other = losses([2.0, math.inf])
    found = compare_losses(frame, other)
    assert found.max_relative_difference == pytest.approx(difference, rel=1e-4)
    assert found.equal_digits == digits


def test_only_common_steps_are_compared_and_the_latest_attempt_counts():
    again = pd.concat([losses([9.0, 9.0]), losses([2.0, 1.0], attempt=1)])
    found = compare_losses(losses([2.0, 1.0, 0.5]), again)
    assert (found.steps, found.max_relative_difference) == (2, 0.0)
    assert compare_losses(losses([]), again) is None
