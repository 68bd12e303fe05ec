"""What decides a step: overflow, autocast, learning rates, evaluation, the end of the data, what rank 0 shows."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pptoolkit.plan import Plan
from tests.support.ranks import RankPool
from tests.trainer import cases

Pools = Callable[[int], RankPool]
TWO = Plan(cuts=(4,), micro_batches=2)
ZBV = Plan(cuts=(2, 4, 6), micro_batches=2, schedule="zbv")  # the last stage, and with it the loss, is on rank 0


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.case("N13")
def test_an_overflow_on_one_stage_is_one_decision_of_all_ranks(pool: Pools, tmp_path: Path, scaled: bool) -> None:
    answers = pool(2).run(cases.overflow, str(tmp_path), scaled=scaled)
    if not scaled:
        assert all("gradients of step 2 are not finite" in answer["error"] for answer in answers)
        assert "layer07.linear.weight" in answers[1]["error"]
        return
    for answer in answers:
        assert answer["skipped"] == [False, False, True, False, False]
        assert answer["parameters_changed"] == [True, True, False, True, True]
        assert answer["scale"] == 2.0**9
    assert answers[0]["losses"] == answers[1]["losses"]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.case("N14", "N17")
def test_autocast_acts_on_both_stages_and_the_border_keeps_its_type(pool: Pools, tmp_path: Path, precision: str) -> None:
    wanted = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}[precision]
    first, second = pool(2).run(cases.autocast, str(tmp_path), precision=precision)
    for answer in (first, second):
        assert answer["matmul_types"] == [wanted]
        assert answer["parameter_types"] == ["torch.float32"]
        assert answer["evaluation"] == pytest.approx(answer["reference_evaluation"], rel=0.02)
    assert first["evaluation"] == second["evaluation"]
    assert first["sent_type"] == second["received_type"] == wanted


def test_learning_rates_are_equal_on_every_rank_whatever_its_groups(pool: Pools, tmp_path: Path) -> None:
    for kind in ("factor", "scheduler"):
        answers = pool(4).run(cases.rates, str(tmp_path), kind=kind)
        # The last rank has only parameters without decay, the others have both kinds.
        assert all(answer["rates"] == pytest.approx([0.01 * f for f in (1 / 3, 2 / 3, 1, 1, 1)]) for answer in answers)
        assert [answer["decays"] for answer in answers] == [[0.0, 0.1]] * 4


@pytest.mark.case("N16")
def test_evaluation_with_other_batches_leaves_no_trace(pool: Pools, tmp_path: Path) -> None:
    plain = pool(4).run(cases.evaluate_between, str(tmp_path), evaluate=False)
    evaluated = pool(4).run(cases.evaluate_between, str(tmp_path), evaluate=True)
    for with_it, without in zip(evaluated, plain, strict=True):
        assert with_it["evaluations"] == evaluated[0]["evaluations"]
        assert with_it["evaluations"][0] == pytest.approx(with_it["reference"], rel=1e-9)
        for key in ("losses", "parameters", "buffers", "random"):
            assert with_it[key] == without[key]
    # The replicas saw different samples, and keep one set of running statistics.
    assert evaluated[0]["buffers"] == evaluated[2]["buffers"]


def test_replicas_whose_data_end_at_different_steps_stop_together(pool: Pools, tmp_path: Path) -> None:
    answers = pool(4).run(cases.streams, str(tmp_path), lengths=(3, 5))
    for answer in answers:
        assert answer["steps"] == 3
        assert "the data ended after step 3 of 9" in answer["message"]
        assert answer["losses"] == answers[0]["losses"]
    assert answers[0]["losses"] == pytest.approx(answers[0]["reference"], rel=1e-9)


@pytest.mark.case("C4")
def test_rank_0_shows_the_loss_and_counts_the_samples_of_the_whole_batch(pool: Pools, tmp_path: Path) -> None:
    for ranks, plan in (
        (1, Plan(micro_batches=2)),
        (2, TWO),
        (2, ZBV),
        (4, Plan(cuts=(2, 4, 6), micro_batches=2)),
        (4, TWO.evolve(replicas=2)),
    ):
        folder = tmp_path / f"{ranks}-{plan.replicas}-{plan.schedule}"
        answers = pool(ranks).run(cases.shown, str(folder), plan=plan)
        text = answers[0]["screen"]
        assert f"loss {answers[0]['losses'][0]:.4f}" in text.splitlines()[0]
        assert all(not answer["screen"] for answer in answers[1:])
        rows = [json.loads(line) for path in (folder / "run" / "scalars").glob("*.jsonl") for line in path.read_text().splitlines()]
        for step in range(cases.STEPS):
            assert sum(row["samples"] for row in rows if row["step"] == step) == 16
            assert {row["loss"] for row in rows if row["step"] == step} == {answers[0]["losses"][step]}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.case("N10")
def test_recompute_changes_neither_dropout_nor_batch_norm(pool: Pools, tmp_path: Path, recompute: bool) -> None:
    plain = pool(2).run(cases.train_noisy, str(tmp_path), recompute=())
    again = pool(2).run(cases.train_noisy, str(tmp_path), recompute=(0, 1) if recompute else (1,))
    for a, b in zip(plain, again, strict=True):
        assert (a["losses"], a["parameters"], a["buffers"]) == (b["losses"], b["parameters"], b["buffers"])
        assert {v for n, v in a["buffers"].items() if n.endswith("num_batches_tracked")} == {4 * cases.STEPS}
        assert any("batch normalisation" in warning for warning in a["warnings"])
