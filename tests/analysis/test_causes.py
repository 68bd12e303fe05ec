from itertools import pairwise

import pytest

from tests.analysis.synthetic_run import Truth, write_run

BASE = Truth(forward_s=[0.005] * 4, cuts=[1, 2, 3], noise=0.02)
ALL = {
    "imbalance": {"forward_s": [0.005, 0.005, 0.01, 0.005]},
    "link": {"transfer_s": 0.004},
    "data": {"data_s": 0.04},
    "step_end": {"after_s": 0.04},
    "host": {"action_overhead_s": 0.003},
    "jitter": {"noise": 0.4},
}


def causes_of(tmp_path, **changes):
    report = write_run(tmp_path / "r", Truth(**{**vars(BASE), **changes})).report()
    return report, report.causes


@pytest.mark.parametrize("cause", ALL)
def test_what_was_put_in_is_the_largest_part_after_the_schedule(tmp_path, cause):
    _, causes = causes_of(tmp_path, **ALL[cause])
    rest = {name: seconds for name, seconds in causes.parts.items() if name != "schedule"}
    assert max(rest, key=rest.__getitem__) == cause


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("joined_end", [True, False])
def test_the_parts_sum_to_the_measured_bubble(tmp_path, schedule, joined_end):
    everything = {name: value for changes in ALL.values() for name, value in changes.items()}
    report, causes = causes_of(tmp_path, **{**everything, "noise": 0.05, "schedule": schedule, "joined_end": joined_end})
    assert sum(causes.parts.values()) == pytest.approx(causes.bubble_s, rel=1e-9)
    assert sum(causes.ratios.values()) == pytest.approx(report.bubble.ratio.median, abs=0.02)
    assert abs(causes.ratios["unexplained"]) < 0.02
    for rank, parts in causes.per_rank.items():
        assert sum(parts.values()) + causes.compute_per_rank[rank] == pytest.approx(causes.step_time_s, rel=1e-9)


def test_the_waterfall_goes_from_the_compute_to_the_measured_step_without_a_gap(tmp_path):
    _, causes = causes_of(tmp_path, transfer_s=0.002)
    bars = causes.waterfall()
    assert bars[0] == ("compute", 0.0, causes.compute_s)
    assert bars[-1][2] == pytest.approx(causes.step_time_s, rel=1e-9)
    assert all(before[2] == after[1] for before, after in pairwise(bars))


def test_gpipe_with_4_stages_and_4_micro_batches_leaves_three_sevenths_idle(tmp_path):
    truth = Truth(forward_s=[0.02] * 4, backward_s=[0.04] * 4, cuts=[1, 2, 3], micro_batches=4, schedule="gpipe", sampling_cost=0.0)
    causes = write_run(tmp_path / "r", truth).report().causes
    assert causes.ratios["schedule"] == pytest.approx(3 / 7, abs=0.001)
    assert all(abs(causes.ratios[name]) < 0.001 for name in causes.parts if name != "schedule")


def test_shifted_clocks_change_nothing(tmp_path):
    _, plain = causes_of(tmp_path, transfer_s=0.002)
    (tmp_path / "shifted").mkdir()
    _, shifted = causes_of(tmp_path / "shifted", transfer_s=0.002, clock_offset_ns={1: 3_700_000_000, 3: -50_000_000})
    assert shifted.parts == pytest.approx(plain.parts, abs=1e-6)


def test_the_critical_path_is_the_step_and_goes_through_the_slow_stage(tmp_path):
    report, causes = causes_of(tmp_path, forward_s=[0.005, 0.005, 0.02, 0.005], transfer_s=0.001, after_s=0.004, data_s=0.002)
    path = report.critical_path
    assert sum(path.seconds.values()) == pytest.approx(causes.step_time_s, rel=0.01)
    assert path.compute_share[2] > 0.8
    assert {"forward", "backward", "link", "data", "optimizer"} <= set(path.seconds)
    assert all(a.end_s == pytest.approx(b.start_s, abs=1e-9) for a, b in pairwise(path.pieces))


def test_a_healthy_balanced_run_is_hardly_slower_than_a_straggler_free_one(tmp_path):
    report, _ = causes_of(tmp_path)
    assert 1.0 <= report.slowdown.ratio < 1.03
