"""Section 6 of the cases from public reports, balance and partition: each by its id."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pptoolkit.errors import PlanError
from pptoolkit.models import squared_error
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.planner.baselines import baseline_cuts
from pptoolkit.planner.partition import minimax_cuts
from pptoolkit.run import Run
from tests.analysis.synthetic_run import Truth, true_step_s, write_run
from tests.engine import models
from tests.support.ranks import RankPool
from tests.trainer import cases as trainer_cases
from tests.trainer import recut_cases as cases
from tests.trainer import reference
from tests.trainer.recut_parity import assert_same, merge

Pools = Callable[[int], RankPool]
TWO = Plan(cuts=(4,), micro_batches=4)


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def test_b1_every_way_of_cutting_takes_each_layer_once_in_order() -> None:
    draw = random.Random(1)
    for layers in range(1, 21):
        costs = [draw.paretovariate(1.2) for _ in range(layers)]
        sizes = [draw.randrange(1, 10**6) for _ in range(layers)]
        for stages in range(1, layers + 1):
            ways = {"ours": minimax_cuts(costs, stages), "equal": equal_layer_cuts(layers, stages), **baseline_cuts(costs, sizes, stages)}
            for name, cuts in ways.items():
                parts = Plan(cuts=cuts).stage_layers(layers)
                assert [i for part in parts for i in part] == list(range(layers)), name
                assert all(len(part) for part in parts), name
                assert sum(sum(sizes[i] for i in part) for part in parts) == sum(sizes)


@pytest.mark.parametrize("cuts", [(0,), (8,), (9,), (3, 3), (5, 3)])
def test_b1_cuts_that_do_not_cover_the_model_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match=rf"cuts=\[{', '.join(map(str, cuts))}\]"):
        Plan(cuts=cuts).stage_layers(8)


@pytest.mark.parametrize("cut", [4, *(pytest.param(cut, marks=pytest.mark.slow) for cut in (1, 7))])
def test_b1_the_ranks_together_build_each_layer_once(pool: Pools, tmp_path: Path, cut: int) -> None:
    first, second = pool(2).run(cases.parameters_of, str(tmp_path), cuts=(cut,))
    (whole,) = pool(1).run(cases.parameters_of, str(tmp_path), cuts=())
    assert [*first, *second] == list(whole)
    assert {**first, **second} == whole


def test_b2_five_equal_layers_on_four_stages_leave_none_empty() -> None:
    assert [len(part) for part in Plan(cuts=minimax_cuts([1.0] * 5, 4)).stage_layers(5)] in (
        [1, 1, 1, 2],
        [2, 1, 1, 1],
        [1, 2, 1, 1],
        [1, 1, 2, 1],
    )
    assert [len(part) for part in Plan(cuts=equal_layer_cuts(5, 4)).stage_layers(5)] == [2, 1, 1, 1]


@pytest.mark.usefixtures("double")
def test_b2_a_stage_without_parameters_trains_clips_and_is_moved(pool: Pools, tmp_path: Path) -> None:
    """Layers 4 and 5 are Flatten and ReLU: a stage of their own at first, and layers of stages with parameters later."""
    plan = Plan(cuts=(2, 4, 6), schedule="interleaved-1f1b", micro_batches=4)
    named = {"plan": plan, "model": "without parameters"}
    moved = pool(2).run(cases.train, str(tmp_path / "moved"), cuts={2: (1, 3, 5)}, **named)
    wanted = reference.train(
        models.MODELS["without parameters"](),
        list(trainer_cases.in_order(trainer_cases.numbers(16), 16)),
        loss=squared_error,
        make_optimizer=trainer_cases.adam,
        clip_norm=0.5,
        learning_rate=trainer_cases.warm_up,
    )
    got = merge(moved)
    for key in ("losses", "norms", "parameters"):
        assert_same(got[key], wanted[key], key)


def test_b3_a_big_embedding_that_is_cheap_weighs_what_it_takes_not_what_it_holds(tmp_path: Path) -> None:
    seconds = [0.0003, *[0.005] * 6]
    truth = Truth(forward_s=seconds, cuts=[1], parameter_bytes=[4_000_000, *[1000] * 6], noise=0.02)
    run = write_run(tmp_path / "run", truth)
    by_parameters = baseline_cuts(run.layer_costs().compute_s, truth.sizes, 2)["by_parameters"]
    assert by_parameters == (1,)
    found = run.suggest()[0]
    assert found.plan.cuts == minimax_cuts(seconds, 2)
    assert true_step_s(truth, found.plan.cuts) < 0.7 * true_step_s(truth, by_parameters)


def test_b4_a_suggestion_pays_off_and_by_as_much_as_it_says(tmp_path: Path) -> None:
    """That the losses stay the same is tests/loop/test_loop.py's, on real ranks."""
    truth = Truth(forward_s=[ms / 3e3 for ms in (25, 5, 5, 5, 5, 5, 5, 5)], cuts=[4], noise=0.02)
    before = write_run(tmp_path / "before", truth)
    plan = before.suggest()[0].plan
    assert plan.cuts == (2,)
    applied = Truth(forward_s=truth.forward_s, cuts=list(plan.cuts), noise=0.02, seed=1)
    after = write_run(tmp_path / "after", applied, info_changes={"plan": plan.to_dict()}).report()
    assert after.step_time.median <= 0.85 * before.report().step_time.median
    assert abs(after.prediction.error_ratio) < 0.10


def test_b7_a_model_with_skip_connections_is_timed_planned_and_cut_across_them(pool: Pools, tmp_path: Path) -> None:
    named = {"plan": TWO, "model": "skips"}
    stayed = pool(2).run(cases.train, str(tmp_path / "stayed"), cuts={}, **named)
    costs = Run.open(stayed[0]["run"]).layer_costs()
    assert costs is not None
    assert costs.missing == ()
    best = minimax_cuts(costs.compute_s, 2)
    moved = pool(2).run(cases.train, str(tmp_path / "moved"), cuts={1: (2,), 3: best} if best != (2,) else {1: best}, **named)
    assert_same(merge(moved), merge(stayed))


def test_b9_adams_state_follows_its_layers_to_an_uneven_cut(pool: Pools, tmp_path: Path) -> None:
    """Inside one job; what a checkpoint brings to another plan is the checkpoints' own."""
    moved = pool(2).run(cases.train, str(tmp_path / "moved"), plan=TWO, cuts={3: (7,)})
    stayed = pool(2).run(cases.train, str(tmp_path / "stayed"), plan=TWO, cuts={})
    got, wanted = merge(moved), merge(stayed)
    assert set(wanted["state"]["layer01.linear.weight"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert_same(got, wanted)
