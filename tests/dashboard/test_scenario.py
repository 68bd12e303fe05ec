"""What-if: each question moves the simulated step the way it must."""

from dataclasses import replace
from pathlib import Path

import pytest

from dashboard.scenario import best_cuts, fitting_schedules, memory_costs, own_scenario, scenario_rows, simulate_scenario, step_parts
from dashboard.simulated import op_rows, simulated_scene
from pptoolkit.errors import PlanError
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.run import Run
from tests.dashboard.synthetic import SyntheticRun


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> MeasuredStep:
    root: Path = tmp_path_factory.mktemp("scenario")
    found = Run.open(SyntheticRun(root=root, run_id="run").train(12).directory.path).measured_step()
    assert found is not None
    return found


def test_with_nothing_changed_it_is_the_planners_replay(measured: MeasuredStep) -> None:
    assert simulate_scenario(measured, own_scenario(measured)).step_time_s == pytest.approx(Predictor(measured).replay_s)


def test_slower_links_and_a_slow_rank_take_longer(measured: MeasuredStep) -> None:
    own = own_scenario(measured)
    now = simulate_scenario(measured, own).step_time_s
    for changes in ({"link_factor": 16.0}, {"slow_rank": 3, "slow_factor": 2.0}):
        assert simulate_scenario(measured, replace(own, **changes)).step_time_s > now * 1.02  # type: ignore[arg-type]


def test_more_micro_batches_take_less_time_each(measured: MeasuredStep) -> None:
    own = own_scenario(measured)
    few, many = (simulate_scenario(measured, replace(own, micro_batches=m)).step_time_s / m for m in (8, 32))
    assert many < few


def test_the_parts_of_a_step_sum_to_it_and_better_cuts_leave_less_imbalance(measured: MeasuredStep) -> None:
    own = own_scenario(measured)
    parts, better = step_parts(measured, own), step_parts(measured, replace(own, cuts=best_cuts(replace_cuts(measured), 4)))
    assert sum(parts.values()) == pytest.approx(simulate_scenario(measured, own).step_time_s)
    assert better["imbalance"] < parts["imbalance"]
    assert better["compute"] == pytest.approx(parts["compute"])


def test_as_tables_what_was_asked_stands_beside_what_came_and_every_op_has_its_place(measured: MeasuredStep) -> None:
    own = own_scenario(measured)
    slow = replace(own, slow_rank=3, slow_factor=2.0)
    steps = {"what if": (slow, simulate_scenario(measured, slow)), "as this run": (own, simulate_scenario(measured, own))}
    table = scenario_rows(measured, steps).set_index("step")
    assert table["slow_factor"].to_dict() == {"measured": 1.0, "what if": 2.0, "as this run": 1.0}
    assert table.loc["what if", "step_time_ms"] == pytest.approx(1e3 * steps["what if"][1].step_time_s)
    assert (table["ms_per_micro_batch"] * table["micro_batches"]).tolist() == pytest.approx(table["step_time_ms"].tolist())
    ops = op_rows({name: simulated_scene(step) for name, (_, step) in steps.items()})
    forwards = ops[(ops["simulated"] == "what if") & (ops["op"] == "forward")]
    assert len(forwards) == 4 * own.micro_batches
    assert (forwards["end_ms"] > forwards["start_ms"]).all()
    assert ops[ops["simulated"] == "what if"]["end_ms"].max() == pytest.approx(table.loc["what if", "step_time_ms"], rel=0.01)


def replace_cuts(measured: MeasuredStep) -> MeasuredStep:
    """Return the measured step as if it had run in one stage less, so that the cuts are searched anew."""
    return replace(measured, plan=measured.plan.evolve(cuts=measured.plan.cuts[:-1]))


def test_only_schedules_that_fit_the_ranks_and_the_layers_are_offered() -> None:
    assert fitting_schedules(4, 10, 8)["1f1b"] == 4
    assert fitting_schedules(4, 10, 8)["zbv"] == 8
    assert "zbv" not in fitting_schedules(4, 7, 8)


def test_memory_follows_the_layers(measured: MeasuredStep) -> None:
    memory = memory_costs(measured, (3, 6, 9))
    assert [memory.activation_bytes[s] for s in range(4)] == [3 << 20, 3 << 20, 3 << 20, 1 << 20]


def test_cuts_that_leave_a_stage_empty_are_refused(measured: MeasuredStep) -> None:
    with pytest.raises(PlanError, match="does not come after"):
        simulate_scenario(measured, replace(own_scenario(measured), cuts=(3, 3, 9)))
