import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pptoolkit.analysis.bubbles import covered_ns, find_bubbles
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry import Op
from tests.analysis.events import event, table
from tests.analysis.synthetic_run import Truth, write_run


def test_gaps_of_a_drawn_step_have_their_phase_and_their_activity():
    #      0    10   20   30   40   50   60   70   80
    #      |data| F0 |recv| F1 |recv| B0 |host| B1 |opt|   step ends at 90
    rows = [
        event(Op.STEP, 0, 90),
        event(Op.DATA, 0, 10),
        event(Op.FORWARD, 10, 20, micro_batch=0),
        event(Op.RECV, 20, 30, micro_batch=1),
        event(Op.FORWARD, 30, 40, micro_batch=1),
        event(Op.RECV, 40, 48, micro_batch=0),
        event(Op.BACKWARD, 50, 60, micro_batch=0),
        event(Op.BACKWARD, 70, 80, micro_batch=1),
        event(Op.OPTIMIZER, 80, 90),
        event(Op.SCHEDULE, 10, 80),
    ]
    gaps = find_bubbles(build_timeline(table(rows)))
    found = list(zip(gaps["start_ns"] // 1_000_000, gaps["end_ns"] // 1_000_000, gaps["phase"], gaps["doing"], strict=True))
    assert found == [
        (0, 10, "warm-up", "data"),
        (20, 30, "warm-up", "recv_wait"),
        (40, 50, "cool-down", "recv_wait"),
        (60, 70, "cool-down", "host"),
        (80, 90, "cool-down", "optimizer"),
    ]
    assert gaps.loc[2, ["recv_wait_s", "host_s"]].tolist() == pytest.approx([0.008, 0.002])


def test_between_the_first_backward_and_the_last_forward_gaps_are_steady():
    rows = [
        event(Op.STEP, 0, 60),
        event(Op.FORWARD, 0, 10),
        event(Op.BACKWARD, 10, 20),
        event(Op.FORWARD, 30, 40),
        event(Op.BACKWARD, 40, 60),
    ]
    assert find_bubbles(build_timeline(table(rows)))["phase"].tolist() == ["steady"]


def test_parts_of_every_gap_sum_to_it_and_gaps_and_compute_to_the_steps(tmp_path):
    truth = Truth(
        forward_s=[0.003, 0.001, 0.004, 0.002], cuts=[1, 2, 3], noise=0.2, transfer_s=0.001, data_s=0.002, after_s=0.003, send_s=1e-4
    )
    steady = write_run(tmp_path / "noisy", truth).steady()
    gaps = find_bubbles(steady.events)
    parts = gaps[[name for name in gaps.columns if name.endswith("_s") and name != "duration_s"]].sum(axis=1)
    assert np.allclose(parts, gaps["duration_s"], atol=1e-9)
    events = steady.events
    compute = events[events["op"].isin([int(Op.FORWARD), int(Op.BACKWARD)])]
    steps = events[events["op"] == int(Op.STEP)]
    total = gaps["duration_s"].sum() + (compute["end_ns"] - compute["start_ns"]).sum() / 1e9
    assert total == pytest.approx((steps["end_ns"] - steps["start_ns"]).sum() / 1e9, abs=1e-7)


@pytest.mark.parametrize(("schedule", "ratio"), [("gpipe", 3 / 7), ("1f1b", 3 / 7)])
def test_a_balanced_pipeline_of_4_stages_and_4_micro_batches_idles_43_percent(tmp_path, schedule, ratio):
    truth = Truth(forward_s=[0.02] * 4, backward_s=[0.04] * 4, cuts=[1, 2, 3], schedule=schedule, micro_batches=4, sampled=False)
    bubble = write_run(tmp_path / schedule, truth).report().bubble
    assert bubble.ratio.median == pytest.approx(ratio, abs=1e-6)
    assert bubble.schedule_ratio == pytest.approx(ratio, abs=1e-6)
    assert set(bubble.per_rank) == {0, 1, 2, 3}


def test_no_events_have_no_bubbles():
    assert find_bubbles(build_timeline(table([]))).empty


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=12), st.lists(st.integers(-5, 70), min_size=1, max_size=8))
def test_covered_time_agrees_with_counting_ticks(intervals, moments):
    intervals.sort()
    starts = np.array([a for a, _ in intervals], dtype=np.int64)
    ends = np.array([a + length for a, length in intervals], dtype=np.int64)
    ticks = {t for a, length in intervals for t in range(a, a + length)}
    expected = [sum(t < moment for t in ticks) for moment in moments]
    assert covered_ns(starts, ends, np.array(moments, dtype=np.int64)).tolist() == pytest.approx(expected)
