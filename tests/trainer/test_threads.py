"""Ranks share the cores of their host, unless the user says otherwise."""

import os

import pytest
import torch

from pptoolkit import launch
from pptoolkit.engine import process_group


def cores() -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.parametrize("ranks", [1, 2, 4, 64])
def test_threads_times_ranks_never_exceed_the_cores(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that the end of the test knows what to undo
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    launch._set_environment(ranks)
    assert int(os.environ["OMP_NUM_THREADS"]) * ranks <= max(cores(), ranks)
    del os.environ["OMP_NUM_THREADS"]
    before = torch.get_num_threads()
    try:
        process_group.limit_threads(ranks)
        assert torch.get_num_threads() * ranks <= max(cores(), ranks)
    finally:
        torch.set_num_threads(before)


def test_the_users_number_of_threads_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    before = torch.get_num_threads()
    launch._set_environment(4)
    process_group.limit_threads(4)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert torch.get_num_threads() == before
