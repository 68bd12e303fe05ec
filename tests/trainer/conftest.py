"""One pool of ranks per size, shared by all tests of the session."""

from collections.abc import Callable, Iterator

import pytest

from tests.support.ranks import RankPool


@pytest.fixture(scope="session")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], RankPool]]:
    pools: dict[int, RankPool] = {}

    def of(ranks: int) -> RankPool:
        if ranks not in pools:
            pools[ranks] = RankPool(ranks, tmp_path_factory.mktemp("ranks"))
        return pools[ranks]

    yield of
    for started in pools.values():
        started.close()
