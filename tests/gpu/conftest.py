"""Ranks with a GPU each, in a process group that carries both kinds of tensors."""

from collections.abc import Iterator

import pytest

from tests.support.ranks import RankPool


@pytest.fixture(scope="module")
def two_gpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RankPool]:
    pool = RankPool(2, tmp_path_factory.mktemp("ranks"), backend="cpu:gloo,cuda:nccl")
    yield pool
    pool.close()
