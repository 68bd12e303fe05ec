"""The engine's numbers are those of one process: weights, losses, gradients and parameters, in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pptoolkit.models import mlp_layers, squared_error
from tests.engine import cases
from tests.support.ranks import RankPool

Pools = Callable[[int], RankPool]


def merge(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Join what the ranks know of their own layers, and check that they agree on the losses."""
    assert all(a["losses"] == answers[0]["losses"] for a in answers)
    merged = {"losses": answers[0]["losses"]}
    for key in ("initial", "gradients", "parameters"):
        names = [name for a in answers for name in a[key]]
        assert len(names) == len(set(names)), "two ranks hold a parameter of the same name"
        merged[key] = {name: value for a in answers for name, value in a[key].items()}
    return merged


def assert_same(got: dict[str, Any], wanted: dict[str, Any]) -> None:
    torch.testing.assert_close(torch.tensor(got["losses"]), torch.tensor(wanted["losses"]), rtol=1e-9, atol=0)
    for key in ("initial", "gradients", "parameters"):
        assert sorted(got[key]) == sorted(wanted[key])
        for name, value in wanted[key].items():
            torch.testing.assert_close(torch.tensor(got[key][name]), torch.tensor(value), rtol=1e-6, atol=1e-12, msg=f"{key} of {name}")


def plain_training(*, samples: int = 8, steps: int = 4, depth: int = 8, seed: int = 7) -> dict[str, Any]:
    """Train with nothing of the engine but the built layers: the whole batch at once."""
    layers = mlp_layers(cases.WIDTH, depth)
    model = torch.nn.Sequential(*(layer.build(seed).double() for layer in layers))
    names = [f"{layer.name}.{name}" for layer, module in zip(layers, model, strict=True) for name, _ in module.named_parameters()]
    parameters = dict(zip(names, model.parameters(), strict=True))
    initial = {name: p.detach().tolist() for name, p in parameters.items()}
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        x, y = cases.batch(step, samples)
        loss = squared_error(model(x), y)
        loss.backward()
        losses.append(loss.item())
        gradients = {name: p.grad.tolist() for name, p in parameters.items() if p.grad is not None}
        optimizer.step()
    return {
        "losses": losses,
        "gradients": gradients,
        "initial": initial,
        "parameters": {n: p.detach().tolist() for n, p in parameters.items()},
    }


@pytest.fixture(scope="module", autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
@pytest.mark.case("N7", "N9", "C5")
def test_training_equals_plain_pytorch_on_the_whole_batch(pool: Pools, ranks: int, schedule: str, micro_batches: int) -> None:
    assert_same(merge(pool(ranks).run(cases.train, schedule=schedule, micro_batches=micro_batches)), plain_training())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.case("S1")
def test_a_batch_that_does_not_divide_is_weighted_right(pool: Pools, ranks: int) -> None:
    assert_same(merge(pool(ranks).run(cases.train, schedule="1f1b", micro_batches=4, samples=10)), plain_training(samples=10))


@pytest.mark.case("S10")
def test_micro_batches_of_one_sample_keep_their_batch_dimension(pool: Pools) -> None:
    assert_same(merge(pool(2).run(cases.train, schedule="1f1b", micro_batches=4, samples=4)), plain_training(samples=4))


@pytest.mark.case("N7")
def test_dropout_draws_do_not_depend_on_cuts_or_stages(pool: Pools) -> None:
    one = merge(pool(1).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.3))
    for ranks, cuts in ((2, None), (2, (2,)), (4, (1, 2, 7))):
        assert_same(merge(pool(ranks).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.3, cuts=cuts)), one)
    other = merge(pool(1).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.3, seed=8))
    assert other["losses"] != one["losses"]


def test_timing_the_layers_changes_no_number(pool: Pools) -> None:
    plain = merge(pool(2).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.3))
    assert merge(pool(2).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.3, sampled=True)) == plain


@pytest.mark.case("N7")
def test_two_identical_runs_are_equal_to_the_bit(pool: Pools) -> None:
    runs = [merge(pool(2).run(cases.train, schedule="1f1b", micro_batches=4, dropout=0.1)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.case("N9")
def test_no_two_layers_of_one_shape_start_alike(pool: Pools) -> None:
    initial = merge(pool(4).run(cases.train, schedule="1f1b", micro_batches=2, steps=1))["initial"]
    weights = [str(value) for name, value in initial.items() if name.endswith("weight")]
    assert len(weights) == len(set(weights)) == 8


@pytest.mark.case("N16")
def test_evaluation_between_steps_leaves_no_trace(pool: Pools) -> None:
    evaluated = pool(2).run(cases.evaluate_between, with_evaluation=True)
    plain = pool(2).run(cases.evaluate_between, with_evaluation=False)
    for with_it, without in zip(evaluated, plain, strict=True):
        assert with_it["losses"] == without["losses"]
        assert with_it["state"] == without["state"]
        assert with_it["random"] == without["random"]
    assert evaluated[0]["evaluations"] == evaluated[1]["evaluations"]
    assert len(set(evaluated[0]["evaluations"])) == 3


@pytest.mark.case("S3")
def test_sequence_lengths_may_change_from_step_to_step(pool: Pools) -> None:
    assert pool(2).run(cases.lengths_that_change)[0] == pytest.approx(pool(1).run(cases.lengths_that_change)[0], rel=1e-9)


def test_buffers_do_not_grow_with_the_number_of_micro_batches(pool: Pools) -> None:
    few, many = pool(4).run(cases.buffers_lent, micro_batches=8), pool(4).run(cases.buffers_lent, micro_batches=64)
    assert few == many
    assert all(size > 0 for size in few)
