"""``verify`` agrees where the plan changes nothing, and names the first layer and step where it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from pptoolkit.plan import Plan
from pptoolkit.verification import TOLERANCE, Verification
from tests.support.ranks import RankPool
from tests.trainer import cases
from tests.trainer.parity import assert_same, merge

Pools = Callable[[int], RankPool]


@pytest.mark.parametrize(
    ("ranks", "plan"),
    [
        (2, Plan(cuts=(2,), micro_batches=4, recompute=(0,))),
        (2, Plan(cuts=(1, 2, 3), schedule="zbv", micro_batches=4)),
        (4, Plan(cuts=(1,), micro_batches=2, replicas=2)),
    ],
)
def test_a_plan_with_dropout_and_batch_norm_is_proved(pool: Pools, ranks: int, plan: Plan) -> None:
    answers = pool(ranks).run(cases.verified, plan=plan, clip_norm=0.1, accumulation=2, learning_rate=cases.warm_up)
    for answer in answers:
        assert answer["holds"]
        assert answer["loss"] < TOLERANCE
        assert [layer["layer"] for layer in answer["layers"]] == [f"noisy{i}" for i in range(4)]
        assert all(layer["gradient"] < TOLERANCE and layer["parameter"] < TOLERANCE for layer in answer["layers"])
    assert answers[0] == answers[-1]
    assert Verification.from_dict(answers[0]).to_dict() == answers[0]


def test_a_layer_that_differs_is_named_with_its_step(pool: Pools) -> None:
    # With replicas each copy of the layer counts its own micro-batches, so it sees fewer than the one process does.
    (answer, _) = pool(2).run(cases.verified, plan=Plan(micro_batches=2, replicas=2), broken=True)
    assert not answer["holds"]
    assert answer["first_difference"]["step"] == 1
    assert {layer["layer"] for layer in answer["layers"] if layer["first_step"] is not None} >= {"broken"}


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("plan", [Plan(micro_batches=2), Plan(cuts=(1,), micro_batches=2), Plan(micro_batches=2, replicas=2)])
def test_compiled_layers_train_like_plain_ones(pool: Pools, tmp_path: Path, plan: Plan) -> None:
    answers = pool(plan.stages * plan.replicas).run(cases.compiled, str(tmp_path), plan=plan, limit_s=380)
    compiled, plain = (merge([answer[kind] for answer in answers]) for kind in ("compiled", "plain"))
    assert_same(compiled, plain, tolerance=1e-9)
