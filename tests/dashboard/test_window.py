"""The reduction of a timeline to its visible window."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dashboard.window import MAX_BARS, Lane, build_window, lanes_of
from dashboard.wire import decode, encode
from pptoolkit.telemetry.events import Op
from tests.dashboard.conftest import read_timeline
from tests.dashboard.synthetic import SyntheticRun, gpt_layers

LANES = lanes_of((0, 1, 2, 3), ranks=4)
ROW = lanes_of((0,), ranks=1)
COMPUTE = [int(Op.FORWARD), int(Op.BACKWARD)]


def events(*rows: tuple[int, int, int, Op, int, int]) -> pd.DataFrame:
    """Rows of (rank, step, micro_batch, op, start_ns, end_ns)."""
    frame = pd.DataFrame(rows, columns=["rank", "step", "micro_batch", "op", "start_ns", "end_ns"])
    return frame.assign(
        stage=frame["rank"], peer=-1, bytes=0, memory_bytes=0, flags=0, replica=0, attempt=0, op=frame["op"].astype(np.uint8)
    )


def whole(timeline: pd.DataFrame) -> dict[str, int]:
    return {"start_ns": int(timeline["start_ns"].min()), "end_ns": int(timeline["end_ns"].max())}


def test_every_op_of_a_wide_window_arrives_as_it_was(timeline: pd.DataFrame) -> None:
    step = timeline[timeline["step"] == 2]
    window = build_window(timeline, LANES, **whole(step), width_px=4000)
    bars = pd.DataFrame(window.bars)
    compute = step[step["op"].isin(COMPUTE)]
    assert len(bars[bars["op"].isin(COMPUTE) & (bars["step"] == 2)]) == len(compute)
    one = compute[(compute["rank"] == 1) & (compute["op"] == Op.FORWARD) & (compute["micro_batch"] == 3)].iloc[0]
    bar = bars[(bars["lane"] == 1) & (bars["op"] == Op.FORWARD) & (bars["micro_batch"] == 3) & (bars["step"] == 2)].iloc[0]
    assert bar["start"] == pytest.approx((one["start_ns"] - window.origin_ns) / 1e3, abs=0.5)
    assert bar["length"] == pytest.approx((one["end_ns"] - one["start_ns"]) / 1e3, rel=1e-5)
    assert bar["count"] == 1


def test_what_is_narrower_than_a_pixel_is_merged_and_takes_the_color_of_what_fills_it_most() -> None:
    rows = [(0, 0, m, Op.FORWARD, 100 * m, 100 * m + 90) for m in range(8)] + [(0, 0, 8, Op.BACKWARD, 800, 830)]
    frame = events(*rows, (0, 0, 9, Op.BACKWARD, 1000, 3000))
    window = build_window(frame, ROW, start_ns=0, end_ns=4000, width_px=4)
    assert window.bars["count"].tolist() == [9, 1]
    assert window.bars["op"].tolist() == [Op.FORWARD, Op.BACKWARD]
    assert window.bars["length"].tolist() == pytest.approx([0.83, 2.0])


def test_a_lone_narrow_event_keeps_its_micro_batch() -> None:
    frame = events((0, 0, 5, Op.FORWARD, 500, 501), (0, 0, 6, Op.FORWARD, 90_000, 91_000))
    window = build_window(frame, ROW, start_ns=0, end_ns=100_000, width_px=100)
    assert window.bars["micro_batch"].tolist() == [5, 6]


def test_waits_and_computations_are_never_merged_into_each_other() -> None:
    frame = events((0, 0, 0, Op.RECV, 0, 40), (0, 0, 0, Op.FORWARD, 40, 80), (0, 0, 1, Op.RECV, 80, 90))
    window = build_window(frame, ROW, start_ns=0, end_ns=1000, width_px=1)
    assert sorted(zip(window.bars["op"].tolist(), window.bars["count"].tolist(), strict=True)) == [(Op.FORWARD, 1), (Op.RECV, 2)]


@given(
    starts=st.lists(st.integers(0, 10**6), min_size=1, max_size=60),
    length=st.integers(1, 3000),
    width=st.integers(1, 200),
)
@settings(max_examples=60, deadline=None)
def test_no_event_is_lost_and_no_bar_reaches_outside_its_events(starts: list[int], length: int, width: int) -> None:
    frame = events(*((0, 0, i, Op.FORWARD, s, s + length) for i, s in enumerate(starts)))
    window = build_window(frame, ROW, start_ns=-1, end_ns=2 * 10**6, width_px=width)
    assert int(window.bars["count"].sum()) == len(starts)
    assert window.bars["start"].min() * 1e3 + window.origin_ns == pytest.approx(min(starts), abs=1)
    assert (window.bars["start"] + window.bars["length"]).max() * 1e3 + window.origin_ns == pytest.approx(max(starts) + length, abs=1)


def test_more_bars_than_the_bound_make_the_pixel_coarser() -> None:
    frame = events(*((r, 0, -1, Op.FORWARD, 10 * i, 10 * i + 9) for r in range(50) for i in range(200)))
    window = build_window(frame, lanes_of(range(50), ranks=50), start_ns=0, end_ns=2000, width_px=2000, max_bars=1000)
    assert len(window.bars["op"]) <= 1000
    assert int(window.bars["count"].sum()) == 10_000


def test_a_step_of_25600_events_makes_a_bounded_message_and_any_part_of_it_can_be_selected(tmp_path: Path) -> None:
    """D6: tens of thousands of bars must not reach the browser as such."""
    layers = gpt_layers(30, unit_s=1e-5)
    run = SyntheticRun(root=tmp_path, run_id="many", layers=layers, stages=16, micro_batches=200, schedule="gpipe", jitter=0.1).train(2)
    timeline = read_timeline(run)
    lanes = lanes_of(range(16), ranks=16)
    assert len(timeline) >= 25_600
    window = build_window(timeline, lanes, **whole(timeline), width_px=1300)
    drawn = timeline["op"].isin([*COMPUTE, Op.RECV, Op.SEND, Op.OPTIMIZER, Op.DATA, Op.REDUCE])
    assert int(window.bars["count"].sum()) == int(drawn.sum())
    assert len(window.bars["op"]) <= min(MAX_BARS, 2 * 1301 * len(lanes))
    assert len(encode(window, {})) < 1_500_000
    middle = int(timeline["start_ns"].median())
    part = build_window(timeline, lanes, start_ns=middle, end_ns=middle + 200_000, width_px=1300)
    compute = timeline["op"].isin(COMPUTE) & (timeline["start_ns"] < middle + 200_000) & (timeline["end_ns"] > middle)
    assert int(np.isin(part.bars["op"], COMPUTE).sum()) == int(compute.sum())


def test_phases_come_from_the_whole_step_even_when_only_its_middle_is_visible(timeline: pd.DataFrame) -> None:
    step = timeline[(timeline["step"] == 3) & (timeline["rank"] == 0)]
    middle = int(step["start_ns"].median())
    window = build_window(timeline, LANES, start_ns=middle, end_ns=middle + 10_000, width_px=100)
    spans = pd.DataFrame(window.spans)
    span = spans[(spans["step"] == 3) & (spans["lane"] == 0)].iloc[0]
    first_backward = step[step["op"] == Op.BACKWARD]["start_ns"].min()
    last_forward = step[step["op"] == Op.FORWARD]["end_ns"].max()
    assert span["warm"] == pytest.approx((first_backward - middle) / 1e3, abs=1)
    assert span["cool"] == pytest.approx((last_forward - middle) / 1e3, abs=1)


def test_gpipe_has_no_steady_phase(tmp_path: Path) -> None:
    timeline = read_timeline(SyntheticRun(root=tmp_path, run_id="gpipe", schedule="gpipe").train(1))
    window = build_window(timeline, LANES, **whole(timeline), width_px=1000)
    assert window.spans["warm"].tolist() == window.spans["cool"].tolist()


def test_a_step_that_was_repeated_after_a_restart_is_two_spans() -> None:
    frame = events((0, 4, -1, Op.STEP, 0, 100), (0, 4, -1, Op.STEP, 900, 1000)).assign(attempt=[0, 1])
    window = build_window(frame, ROW, start_ns=0, end_ns=1000, width_px=100)
    assert window.spans["end"].tolist() == pytest.approx([0.1, 1.0])


def test_clock_events_and_probes_before_step_0_are_not_drawn() -> None:
    frame = events((0, -1, -1, Op.PROBE, 0, 50), (0, 0, -1, Op.CLOCK, 10, 77_000), (0, 0, 0, Op.FORWARD, 60, 90))
    window = build_window(frame, ROW, start_ns=0, end_ns=100, width_px=100)
    assert window.bars["op"].tolist() == [Op.FORWARD]


def test_rows_follow_the_model_replica_by_replica() -> None:
    lanes = lanes_of((1, 0, 1), ranks=4)
    assert [(lane.rank, lane.replica, lane.stages) for lane in lanes] == [(1, 0, (0, 2)), (0, 0, (1,)), (3, 1, (0, 2)), (2, 1, (1,))]
    assert [lane.stage_label for lane in lanes[:2]] == ["stages 0, 2", "stage 1"]


def test_an_empty_timeline_is_an_empty_window(timeline: pd.DataFrame) -> None:
    window = build_window(timeline.iloc[:0], (Lane(rank=0, replica=0, stages=(0,)),), start_ns=0, end_ns=10, width_px=100)
    assert len(window.bars["op"]) == len(window.spans["lane"]) == window.events == 0


def test_a_message_reads_back_as_it_was_written(timeline: pd.DataFrame) -> None:
    window = build_window(timeline, LANES, **whole(timeline), width_px=700)
    header, bars, spans = decode(encode(window, {"title": "é <b>"}))
    assert header["title"] == "é <b>"
    for name, values in {**window.bars, **{f"span {n}": v for n, v in window.spans.items()}}.items():
        read = spans[name.removeprefix("span ")] if name.startswith("span ") else bars[name]
        assert read.dtype == values.dtype
        assert read.tolist() == values.tolist()


def test_a_message_that_is_none_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"b'PK\\x03\\x04'"):
        decode(b"PK\x03\x04rest")
