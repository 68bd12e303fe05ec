"""What others ran into with numbers of pipelines and reported in public, as far as no other test of the trainer asks for just that."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from pptoolkit.plan import Plan
from tests.support.ranks import RankPool
from tests.trainer import cases
from tests.trainer.parity import assert_same, merge, one_process

Pools = Callable[[int], RankPool]


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.slow
@pytest.mark.case("N1", "N6")
def test_gradients_and_their_global_norm_do_not_depend_on_the_number_of_micro_batches(pool: Pools, tmp_path: Path) -> None:
    wanted = one_process(samples=8, clip_norm=0.1)
    for m in (1, 2, 4, 8):
        answers = pool(3).run(cases.train, str(tmp_path / str(m)), plan=Plan(cuts=(3, 6), micro_batches=m), samples=8, clip_norm=0.1)
        assert all(answer["norms"] == answers[0]["norms"] for answer in answers)
        assert_same(merge(answers), wanted)


@pytest.mark.case("N2")
def test_four_accumulated_passes_are_one_batch_of_the_same_samples(pool: Pools, tmp_path: Path) -> None:
    answers = pool(2).run(cases.train, str(tmp_path), plan=Plan(cuts=(4,), micro_batches=2), accumulation=4)
    assert_same(merge(answers), one_process())


@pytest.mark.case("N4")
def test_micro_batches_of_seven_one_and_no_valid_tokens_count_by_their_tokens(pool: Pools, tmp_path: Path) -> None:
    answers = pool(2).run(cases.unequal_tokens, str(tmp_path), valid_tokens=(7, 1, 0))
    assert_same(merge(answers), answers[0]["reference"])


@pytest.mark.slow
@pytest.mark.case("N12")
def test_replicas_are_equal_to_the_bit_and_equal_to_one_process(pool: Pools, tmp_path: Path) -> None:
    answers = pool(4).run(cases.train, str(tmp_path), plan=Plan(cuts=(4,), micro_batches=8, replicas=2))
    assert_same(merge(answers), one_process())  # merging asks for equal bits
