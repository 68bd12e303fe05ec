import json
from dataclasses import replace

import pytest

from pptoolkit.cli.main import run as command
from pptoolkit.errors import InputError, PlanError
from pptoolkit.planner.what_if import WhatIf, what_if
from pptoolkit.schedule import build_schedule
from pptoolkit.simulator import simulate
from pptoolkit.telemetry import LayerFacts
from tests.analysis.synthetic_run import Truth, costs_of, true_step_s, write_run

TRUTH = Truth(
    forward_s=[0.004, 0.002, 0.003, 0.004, 0.002, 0.006],
    cuts=[2, 4],
    noise=0.01,
    transfer_s=0.002,
    after_s=0.002,
    steps=30,
    sampling_cost=0.0,
)
FACTS = [
    LayerFacts(name=f"block{i}", parameters=1000, parameter_bytes=1_000_000, activation_bytes=2_000_000, boundary_bytes=4096)
    for i in range(6)
]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    facts = [fact.model_dump() for fact in FACTS]
    run = write_run(tmp_path_factory.mktemp("runs") / "r", TRUTH, info_changes={"layer_facts": facts})
    return run.measured_step()


def asked(measured, **change):
    return what_if(measured, WhatIf(**change))


def truth(costs=None, schedule="1f1b", cuts=(2, 4)):
    return simulate(build_schedule(schedule, ranks=3, micro_batches=8), costs or costs_of(TRUTH, cuts)).step_time_s


def test_nothing_changed_is_the_run_itself_with_its_replay_error(measured):
    answer = asked(measured)
    assert answer.step.step_time_s == pytest.approx(measured.step_time.median, rel=1e-9)
    assert (answer.step.gain_ratio, answer.step.gain_low_ratio) == (0.0, 0.0)
    assert abs(answer.replay_error_ratio) < 0.02


@pytest.mark.parametrize("cuts", [(1, 3), (3, 5), (2, 5)])
def test_other_cuts(measured, cuts):
    assert asked(measured, cuts=cuts).step.step_time_s == pytest.approx(true_step_s(TRUTH, cuts), rel=0.02)


@pytest.mark.parametrize("schedule", ["gpipe", "zb-h1"])
def test_another_schedule(measured, schedule):
    answer = asked(measured, schedule=schedule)
    assert answer.step.step_time_s == pytest.approx(truth(schedule=schedule), rel=0.02)
    assert answer.step.gain_low_ratio < answer.step.gain_ratio < answer.step.gain_high_ratio


def test_a_schedule_of_two_stages_a_rank_cuts_as_fairly_as_can_be(measured):
    answer = asked(measured, schedule="interleaved-1f1b")
    assert answer.plan.cuts == (1, 2, 3, 4, 5)


def test_faster_links(measured):
    costs = costs_of(TRUTH, (2, 4))
    quick = replace(costs, transfer_s={border: seconds / 4 for border, seconds in costs.transfer_s.items()})
    assert asked(measured, link_factor=4.0).step.step_time_s == pytest.approx(truth(quick), rel=0.02)


def test_a_slower_rank(measured):
    costs = costs_of(TRUTH, (2, 4))
    slow = replace(costs, op_s={(stage, kind): s * (1.5 if stage == 1 else 1.0) for (stage, kind), s in costs.op_s.items()})
    answer = asked(measured, slow_ranks={1: 1.5})
    assert answer.step.step_time_s == pytest.approx(truth(slow), rel=0.02)
    assert answer.step.gain_high_ratio < 0


def test_recompute_costs_a_forward_and_saves_memory(measured):
    plain, again = asked(measured), asked(measured, recompute=(0,))
    assert again.step.step_time_s > plain.step.step_time_s
    assert again.step.memory_bytes[0] < plain.step.memory_bytes[0]
    assert again.step.memory_bytes[1:] == plain.step.memory_bytes[1:]


def test_memory_is_parameters_with_their_state_and_micro_batches_in_flight(measured):
    # Two layers a stage: 2 MB of parameters, four times with gradients and moments, and 4 MB a micro-batch in flight: 3, 2 and 1 of them.
    assert asked(measured).step.memory_bytes == (20_000_000, 16_000_000, 12_000_000)
    assert asked(measured, schedule="gpipe").step.memory_bytes == (40_000_000,) * 3


def test_more_micro_batches_are_predicted_with_what_nobody_measured_in_the_interval(measured):
    answer = asked(measured, micro_batches=16)
    halves = Truth(**{**vars(TRUTH), "forward_s": [f / 2 for f in TRUTH.forward_s], "transfer_s": 0.001, "micro_batches": 16})
    assert answer.step.step_time_s == pytest.approx(true_step_s(halves, (2, 4)), rel=0.02)
    same = Truth(**{**vars(TRUTH), "forward_s": [0.75 * f for f in TRUTH.forward_s], "transfer_s": 0.001, "micro_batches": 16})
    assert answer.step.low_s < true_step_s(halves, (2, 4)) < true_step_s(same, (2, 4)) < answer.step.high_s
    assert "profile measures" in answer.assumptions[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cuts": (2, 9)}, "cut point 9"),
        ({"slow_ranks": {7: 2.0}}, "slow rank 7"),
        ({"micro_batches": 7}, "do not divide the batch of 32"),
        ({"replicas": 2}, "do not divide"),
        ({"recompute": (5,)}, "names stage 5"),
        ({"schedule": "forward"}, "no backward and trains nothing; choose one of gpipe"),
    ],
)
def test_what_cannot_be_is_refused(measured, change, words):
    with pytest.raises(PlanError, match=words):
        asked(measured, **change)


def test_factors_must_be_factors():
    with pytest.raises(InputError, match="link_factor=0"):
        WhatIf(link_factor=0)
    with pytest.raises(InputError, match="slow_ranks"):
        WhatIf(slow_ranks={1: -1.0})


def test_the_command_prints_the_replay_error_beside_the_prediction(tmp_path, capsys):
    run = write_run(tmp_path / "r", TRUTH)
    arguments = ["--cuts", "1,3", "--schedule", "gpipe", "--link-factor", "2", "--slow-rank", "1:1.5"]
    assert command(["simulate", str(run.directory.path), *arguments]) == 0
    assert "the replay of the run is off by" in capsys.readouterr().out.replace("\n", "")
    assert command(["simulate", str(run.directory.path), *arguments, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["version"], body["plan"]["cuts"], body["plan"]["schedule"]) == (1, [1, 3], "gpipe")
    assert command(["simulate", str(run.directory.path), "--cuts", "one"]) == 2
    assert command(["simulate", str(run.directory.path), "--slow-rank", "1"]) == 2
