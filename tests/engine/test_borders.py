"""Whatever crosses a border, under every schedule and cut: losses, gradients and parameters are those of one process."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pptoolkit.schedule import build_schedule, format_csv
from tests.engine import border_cases as cases
from tests.engine import models
from tests.support.ranks import RankPool

Pools = Callable[[int], RankPool]

ONE_STAGE = ("gpipe", "1f1b", "zb-h1")
TWO_STAGES = ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "zbv", "dualpipev")
STAGES = {**dict.fromkeys(ONE_STAGE, 1), **dict.fromkeys(TWO_STAGES, 2)}  # on each rank
FROZEN = tuple(name for name in models.MODELS if name.startswith("frozen"))
TIED = tuple(name for name in models.MODELS if name.startswith("tied"))


@pytest.fixture(scope="module", autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def assert_same(answers: list[list[dict[str, Any]]], *wanted: dict[str, Any]) -> None:
    """Compare what all ranks tell of each case with the references; one reference is for all cases."""
    for case, told in enumerate(zip(*answers, strict=True)):
        reference = wanted[case if len(wanted) > 1 else 0]
        assert all(t["losses"] == told[0]["losses"] and t["norms"] == told[0]["norms"] for t in told)
        for key in ("losses", "norms"):
            torch.testing.assert_close(torch.tensor(told[0][key]), torch.tensor(reference[key]), rtol=1e-9, atol=0)
        for key in ("gradients", "state"):
            names = [name for t in told for name in t[key]]
            assert sorted(names) == sorted(reference[key]), f"{key} of case {case}"
            for t in told:
                for name, value in t[key].items():
                    target = torch.tensor(reference[key][name])
                    torch.testing.assert_close(torch.tensor(value), target, rtol=1e-6, atol=1e-12, msg=f"{key} of {name}, case {case}")
        state = {name: value for t in told for name, value in t["state"].items()}
        for t in told:
            for name, value in t["copies"].items():
                assert value == state[name], f"the copy of {name} differs from it"


# Micro-batches fewer than stages, as many as no number of ranks divides, and more than stages.
COUNTS = (1, 2, 3, 8)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.case("C1", "C2")
def test_every_schedule_equals_one_process(pool: Pools, schedule: str, ranks: int) -> None:
    answers = pool(ranks).run(cases.train, "plain", COUNTS, schedule=schedule, cuts=STAGES[schedule])
    assert_same(answers, models.train_plainly("plain"))


def test_four_stages_a_rank_equal_one_process(pool: Pools) -> None:
    for schedule in ("interleaved-1f1b", "interleaved-zb", "looped-bfs"):
        assert_same(pool(2).run(cases.train, "plain", (3, 4), schedule=schedule, cuts=4), models.train_plainly("plain"))


def test_stages_that_cannot_split_a_backward_equal_one_process_under_schedules_that_do(pool: Pools) -> None:
    for schedule in ("zb-h1", "zbv"):
        for name in ("plain", "frozen first half"):
            answers = pool(2).run(cases.train, name, (3,), schedule=schedule, cuts=STAGES[schedule], splits=False)
            assert_same(answers, models.train_plainly(name))


def test_a_schedule_from_a_file_with_stages_anywhere_equals_one_process(pool: Pools, tmp_path: Any) -> None:
    odd = tmp_path / "odd.csv"  # stages 0, 1 and 3 on rank 0; a split backward beside a whole one
    odd.write_text("0F0,1F0,0F1,1F1,3F0,3B0,3F1,3I1,1B0,0I0,3W1,0W0,1B1,0B1\n2F0,2F1,2I0,2B1,2W0\n")
    assert_same(pool(2).run(cases.train, "plain", (2,), schedule=str(odd), cuts=2), models.train_plainly("plain"))
    known = tmp_path / "zbv.csv"
    known.write_text(format_csv(build_schedule("zbv", ranks=2, micro_batches=5)))
    assert_same(pool(2).run(cases.train, "plain", (5,), schedule=str(known), cuts=2), models.train_plainly("plain"))


def test_uneven_cuts_with_several_stages_a_rank_equal_one_process(pool: Pools) -> None:
    for schedule, cuts in (("zbv", (1, 2, 7)), ("interleaved-zb", (3, 4, 5)), ("dualpipev", (1, 6, 7))):
        assert_same(pool(2).run(cases.train, "plain", (4,), schedule=schedule, cuts=cuts), models.train_plainly("plain"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zbv"])
@pytest.mark.parametrize("name", ["tuple of kinds", "dict", "not contiguous", "masked", "skips", "without parameters"])
@pytest.mark.case("S4", "S6", "S7", "S8")
def test_whatever_crosses_a_border_equals_one_process(pool: Pools, name: str, schedule: str) -> None:
    answers = pool(2).run(cases.train, name, (1, 4, 8), schedule=schedule, cuts=STAGES[schedule])
    assert_same(answers, models.train_plainly(name))


@pytest.mark.parametrize("name", ["tuple of kinds", "dict", "masked", "skips", "without parameters"])
def test_whatever_crosses_many_borders_equals_one_process(pool: Pools, name: str) -> None:
    for schedule in ("1f1b", "zb-h1", "interleaved-zb", "dualpipev"):
        assert_same(pool(4).run(cases.train, name, (3,), schedule=schedule, cuts=STAGES[schedule]), models.train_plainly(name))


@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (5,), (6,), (7,)])
@pytest.mark.case("S8")
def test_a_skip_connection_equals_one_process_wherever_the_cut_is(pool: Pools, cuts: tuple[int, ...]) -> None:
    for schedule in ("1f1b", "zb-h1"):
        assert_same(pool(2).run(cases.train, "skips", (4,), schedule=schedule, cuts=cuts), models.train_plainly("skips"))


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "zbv"])
def test_a_tensor_unused_on_some_micro_batches_gets_no_gradient_from_them(pool: Pools, schedule: str) -> None:
    answers = pool(2).run(cases.train, "used sometimes", (4,), schedule=schedule, cuts=STAGES[schedule], samples=10)
    assert_same(answers, models.train_plainly("used sometimes", samples=10, micro_batches=4))


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved-1f1b", "zbv"])
@pytest.mark.parametrize("name", ["plain", "dict", "masked", "skips"])
@pytest.mark.case("S1")
def test_a_batch_that_does_not_divide_equals_one_process(pool: Pools, name: str, schedule: str) -> None:
    answers = pool(2).run(cases.train, name, (4,), schedule=schedule, cuts=STAGES[schedule], samples=10)
    assert_same(answers, models.train_plainly(name, samples=10))


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.case("S12")
def test_frozen_layers_in_any_pattern_equal_one_process(pool: Pools, name: str, schedule: str) -> None:
    answers = pool(2).run(cases.train, name, (1, 4), schedule=schedule, cuts=STAGES[schedule], clip=0.1)
    assert_same(answers, models.train_plainly(name, clip=0.1))


@pytest.mark.parametrize("schedule", STAGES)
@pytest.mark.parametrize("name", TIED)
@pytest.mark.case("N5")
def test_tied_parameters_stay_one_parameter(pool: Pools, name: str, schedule: str) -> None:
    wanted = models.train_plainly(name, clip=0.1)
    for ranks in (1, 2, 4) if schedule in ("1f1b", "zbv") else (2,):
        assert_same(pool(ranks).run(cases.train, name, (4,), schedule=schedule, cuts=STAGES[schedule], clip=0.1), wanted)


@pytest.mark.case("N5")
def test_tied_parameters_that_a_cut_puts_apart_change_no_number(pool: Pools) -> None:
    wanted = models.train_plainly("tied to the embedding", clip=0.1)
    for cuts in ((1,), (3,), (7,)):
        assert_same(pool(2).run(cases.train, "tied to the embedding", (2,), schedule="1f1b", cuts=cuts, clip=0.1), wanted)


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
@pytest.mark.case("S3")
def test_lengths_may_change_between_micro_batches_and_steps(pool: Pools, schedule: str) -> None:
    wanted = pool(1).run(cases.lengths, "1f1b", 1)[0]
    for ranks in (2, 4):
        for told in pool(ranks).run(cases.lengths, schedule, STAGES[schedule]):
            assert told == pytest.approx(wanted, rel=1e-12)
    model = torch.nn.Sequential(*(layer.build(7) for layer in models.MODELS["plain"]()))
    parts = [cases.length_batch(n) for n in (5, 2, 9)]
    assert wanted[0] == pytest.approx(sum(torch.nn.functional.mse_loss(model(x), y).item() for x, y in parts) / 3, rel=1e-12)


@pytest.mark.case("N10")
def test_batch_norm_follows_the_micro_batches_one_after_the_other(pool: Pools) -> None:
    wanted = models.train_plainly("batch norm", micro_batches=4)
    for schedule in ("gpipe", "1f1b", "zb-h1", "zbv"):
        assert_same(pool(2).run(cases.train, "batch norm", (4,), schedule=schedule, cuts=STAGES[schedule]), wanted)


def test_evaluation_with_the_shapes_of_training_leaves_gradients_as_they_are(pool: Pools) -> None:
    for schedule in ("1f1b", "zb-h1", "zbv"):
        answers = pool(2).run(cases.train, "skips", (4,), schedule=schedule, cuts=STAGES[schedule], evaluate=True)
        assert_same(answers, models.train_plainly("skips"))


def test_a_stage_that_hands_on_what_it_got_keeps_it_apart_from_what_comes_next(pool: Pools) -> None:
    for told in pool(4).run(cases.evaluate_views):
        assert told == pytest.approx(pool(1).run(cases.evaluate_views)[0], rel=1e-12)
        assert told[0] == pytest.approx(told[1], rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("schedule", STAGES)
def test_two_hundred_steps_of_skewed_ranks_hang_nowhere(pool: Pools, schedule: str) -> None:
    told = pool(4).run(cases.skewed, schedule, STAGES[schedule], 200, limit_s=300)
    assert len(told[0]) == 200
    assert told[0][-1] < told[0][0]
    assert told[0] == told[3]


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_some_steps_of_skewed_ranks_hang_nowhere(pool: Pools, schedule: str) -> None:
    told = pool(4).run(cases.skewed, schedule, STAGES[schedule], 10)
    assert told[0] == told[3]
