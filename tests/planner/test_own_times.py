"""Each step simulated with its own op times is the step that happened, late ops and all."""

import numpy as np
import pytest

from pptoolkit.planner.own_times import simulate_own_times
from pptoolkit.planner.predict import Predictor
from tests.analysis.synthetic_run import Truth, write_run


@pytest.mark.parametrize(("schedule", "cuts"), [("1f1b", [2, 4, 6]), ("zb-h1", [2, 4, 6]), ("dualpipev", [1, 2, 3, 4, 5, 6, 7])])
def test_steps_with_late_ops_are_replayed_one_by_one(tmp_path, schedule, cuts):
    truth = Truth(
        forward_s=[0.002, 0.003, 0.004, 0.002, 0.005, 0.002, 0.003, 0.004],
        cuts=cuts,
        ranks=4,
        schedule=schedule,
        micro_batches=4,
        transfer_s=0.0006,
        send_s=0.0001,
        data_s=0.003,
        after_s=0.002,
        steps=12,
        noise=0.3,
        op_extra_s=lambda step, action: 0.05 if (step + action.stage) % 3 == 0 and action.micro_batch == 1 else 0.0,
    )
    run = write_run(tmp_path / "run", truth)
    found = simulate_own_times(run.steady(), run.measured_step())
    assert len(found.simulated_s) == run.steady().count
    assert found.error_ratios == pytest.approx(np.zeros(run.steady().count), abs=0.01)
    assert abs(Predictor(run.measured_step()).replay_error_ratio) > 0.03  # medians know of no late op


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_a_step_that_ranks_begin_while_others_still_end_the_last_one_counts_from_the_rank_that_waits_for_nobody(tmp_path, schedule):
    forward_s = [0.002, 0.003, 0.004, 0.002, 0.005, 0.002, 0.003, 0.004]
    truth = Truth(forward_s=forward_s, cuts=[2, 4, 6], schedule=schedule, micro_batches=4, steps=24, joined_end=False, agrees_early=True)
    run = write_run(tmp_path / "run", truth)
    assert run.measured_step().joined_end
    assert simulate_own_times(run.steady(), run.measured_step()).error_ratios == pytest.approx(np.zeros(run.steady().count), abs=0.01)
