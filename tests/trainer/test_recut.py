"""Cutting anew while training: the same losses, parameters and optimizer state as without it; only where it pays; told in the run."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.plan import Plan
from pptoolkit.plan_history import PlanHistory
from pptoolkit.run import Run
from pptoolkit.telemetry.settings import TelemetrySettings
from tests.support.ranks import RankPool
from tests.trainer import recut_cases as cases
from tests.trainer.recut_parity import assert_same, merge

Pools = Callable[[int], RankPool]
TWO = Plan(cuts=(4,), micro_batches=4)


@pytest.mark.parametrize(
    ("ranks", "plan", "cuts", "settings"),
    [
        pytest.param(2, TWO, {1: (6,), 3: (2,)}, {}, id="adam"),
        pytest.param(2, TWO, {2: (1,)}, {"optimizer": "momentum", "scheduled": True, "groups": True}, id="momentum"),
        pytest.param(2, TWO, {2: (7,)}, {"model": "built", "recompute": ("[0-5]",), "scheduled": True}, id="built"),
        pytest.param(
            2,
            Plan(cuts=(2, 4, 6), schedule="zbv", micro_batches=4, recompute=(1,)),
            {1: (1, 2, 7), 3: (3, 5, 7)},
            {"groups": True},
            id="v-schedule",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4,
            Plan(cuts=(2, 4, 6), micro_batches=4),
            {1: (1, 2, 3), 3: (5, 6, 7)},
            {"accumulation": 2},
            id="four ranks",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            4,
            TWO.evolve(replicas=2, micro_batches=2),
            {2: (6,)},
            {"optimizer": "momentum", "scheduled": True},
            id="replicas",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_training_goes_on_with_the_same_numbers_after_its_layers_have_moved(
    pool: Pools, tmp_path: Path, ranks: int, plan: Plan, cuts: dict[int, tuple[int, ...]], settings: dict[str, Any]
) -> None:
    moved = pool(ranks).run(cases.train, str(tmp_path / "moved"), plan=plan, cuts=cuts, **settings)
    stayed = pool(ranks).run(cases.train, str(tmp_path / "stayed"), plan=plan, cuts={}, **settings)
    last = list(cuts[max(cuts)])
    assert all(answer["plan"] == last for answer in moved)
    assert [answer["layers"] for answer in moved] != [answer["layers"] for answer in stayed]
    assert_same(merge(moved), merge(stayed))


def test_the_run_tells_which_plan_held_when_and_statistics_never_mix_them(pool: Pools, tmp_path: Path) -> None:
    answers = pool(2).run(cases.train, str(tmp_path), plan=TWO, cuts={3: (6,)})
    run = Run.open(answers[0]["run"])
    assert [(segment.first_step, segment.cuts) for segment in run.segments] == [(0, (4,)), (3, (6,))]
    assert run.segments[1].moved_bytes > 0
    assert run.info.read_plan().cuts == Plan.load(run.directory.plan_path).cuts == (6,)
    assert [entry.plan.cuts for entry in PlanHistory(run.directory.plan_path).entries()] == [(4,), (6,)]
    report = run.report()
    # Step 3 is the first under its plan, as step 0 was: only step 4 counts.
    assert list(run.steady().windows.index) == [4]
    assert report.steps_done == 5
    assert [(row.layers, row.rank) for row in report.stages] == [((0, 6), 0), ((6, 8), 1)]
    assert report.changes == ()
    assert all(answer["series"] == ["cuts=6"] for answer in answers)
    assert [segment["first_step"] for segment in json.loads(json.dumps(report.to_dict()))["segments"]] == [0, 3]


@pytest.mark.slow  # decided by real times: a machine that does much else hides them
def test_an_uneven_run_is_cut_anew_once_and_what_was_predicted_stands_beside_what_came(pool: Pools, tmp_path: Path) -> None:
    times = (60, 10, 10, 10, 10, 10, 10, 10)
    answer, other = pool(2).run(cases.measured, str(tmp_path), times_ms=times, cuts=(4,), steps=32)
    run = Run.open(answer["run"])
    assert other["plan"] == answer["plan"] == list(run.segments[-1].cuts) != [4]
    assert len(run.segments) == 2
    assert f"cuts [4] -> {answer['plan']}, predicted" in answer["screen"]
    assert "achieved" in answer["screen"]
    assert "achieved" not in other["screen"]
    prediction = run.report().prediction
    assert prediction is not None
    assert prediction.achieved.median < prediction.predicted.baseline_step_time_s
    assert run.suggest().no_change is not None


@pytest.mark.slow
def test_a_balanced_run_stays_as_it_is(pool: Pools, tmp_path: Path) -> None:
    answer, _ = pool(2).run(cases.measured, str(tmp_path), times_ms=(4,) * 8, cuts=(4,), steps=45)
    assert answer["plan"] == [4]
    assert len(Run.open(answer["run"]).segments) == 1
    assert "not cut anew; at the last look, step" in answer["screen"]


@pytest.mark.parametrize(
    ("ranks", "settings", "message"),
    [
        (2, {"replication": "fsdp", "plan": Plan(replicas=2, micro_batches=2)}, "parameters are sharded over the replicas"),
        (2, {"compile": True}, "cannot move compiled layers"),
        (2, {"telemetry": TelemetrySettings(enabled=False)}, "telemetry is off"),
        (2, {"sample_layers_every": 0}, "sample_layers_every=0 times none"),
    ],
)
def test_what_cannot_be_moved_is_refused_before_training(
    pool: Pools, tmp_path: Path, ranks: int, settings: dict[str, Any], message: str
) -> None:
    for answer in pool(ranks).run(cases.refused, str(tmp_path), **settings):
        assert message in answer
    assert not (tmp_path / "run").exists()
