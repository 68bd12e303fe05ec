"""What benchmarks/memory.py counts, and what it says of it."""

import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.live_memory import LiveBytes, PeakMemory
from benchmarks.memory import results_of

_SIZE = 256 * 256 * 4


def test_what_autograd_keeps_counts_until_it_is_let_go():
    with LiveBytes() as live:
        weight, x = torch.randn(256, 256, requires_grad=True), torch.randn(256, 256)
        base = live.now
        y = x
        for _ in range(4):
            y = torch.tanh(y @ weight)  # tanh keeps its output
        assert (live.now - base, live.peak - base) == (4 * _SIZE, 5 * _SIZE)
        y.sum().backward()
        assert live.now - base == 2 * _SIZE  # y and the gradient
        live.begin()
        del y
        assert (live.now - base, live.peak - base) == (_SIZE, 2 * _SIZE)


def test_views_count_once_and_fake_tensors_not_at_all():
    with LiveBytes() as live:
        x = torch.zeros(1024)
        views = [x[1:], x.view(32, 32), x.detach()]
        with FakeTensorMode():
            fake = torch.zeros(1 << 20) * 2
        assert (live.now, fake.numel(), len(views)) == (4096, 1 << 20, 3)
        del x, views
        assert live.now == 0


@pytest.mark.skipif(sys.platform != "linux", reason="the peak resident set is read from /proc")
def test_the_resident_peak_is_that_since_the_beginning():
    with PeakMemory() as memory:
        held = torch.ones(16 << 20)
        before = memory.resident_bytes
        del held
        memory.begin()
        after = memory.resident_bytes
        assert before - after > 48 << 20
        torch.ones(8 << 20)
        assert 24 << 20 < memory.resident_bytes - after < 48 << 20


def test_the_rank_that_grows_most_is_shown_and_only_ours_has_a_goal():
    few, many = [[100, 200]] * 6, [[101, 260]] * 6
    found = {"pptoolkit 8": few, "pptoolkit 64": few, "torch 8": few, "torch 64": many}
    results = results_of({"live": found, "resident": {name: [[0, 0]] * 6 for name in found}}, ranks=2)
    ratios = [r for r in results if r.unit == ""]
    assert [(round(r.value, 6), r.holds) for r in ratios] == [(1.0, True), (1.3, None)]
    assert "  64 micro-batches, rank 1" in [r.name for r in results]
    assert not any("resident" in r.name for r in results)  # the system did not tell
