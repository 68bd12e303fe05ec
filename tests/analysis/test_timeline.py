import pytest

from pptoolkit.analysis.links import pair_messages
from pptoolkit.analysis.timeline import TIMELINE_COLUMNS, build_timeline, clock_uncertainty_ns
from pptoolkit.telemetry import Op
from tests.analysis.events import event, table
from tests.analysis.synthetic_run import Truth, write_run

SHIFT_NS = 3_700_000_000


def test_a_shifted_clock_is_laid_on_rank_0s():
    events = table(
        [
            event(Op.FORWARD, 10, 20, rank=0),
            event(Op.FORWARD, 3730, 3740, rank=1),
            {**event(Op.CLOCK, 3700, 0, rank=1), "end_ns": -SHIFT_NS, "bytes": 5_000},
        ]
    )
    timeline = build_timeline(events)
    assert list(timeline.columns) == list(TIMELINE_COLUMNS)
    assert timeline[["rank", "start_ns", "end_ns"]].values.tolist() == [[0, 10_000_000, 20_000_000], [1, 30_000_000, 40_000_000]]
    assert clock_uncertainty_ns(events) == {1: 5_000}


def test_each_attempt_has_its_own_clock():
    events = table(
        [
            {**event(Op.CLOCK, 0, 0, attempt=0), "end_ns": 1_000_000},
            {**event(Op.CLOCK, 0, 0, attempt=1), "end_ns": 7_000_000},
            event(Op.STEP, 1, 2, attempt=0),
            event(Op.STEP, 1, 2, attempt=1),
        ]
    )
    assert build_timeline(events)["start_ns"].tolist() == [2_000_000, 8_000_000]


def test_no_events_give_an_empty_timeline():
    assert build_timeline(table([])).empty


@pytest.mark.parametrize("shifted", [0, 1, 2])
def test_no_receive_ends_before_its_send_whatever_the_ranks_clocks_show(tmp_path, shifted):
    truth = Truth(forward_s=[0.004] * 6, cuts=[2, 4], transfer_s=0.001, steps=4, clock_offset_ns={0: 0, 1: 0, 2: 0, shifted: SHIFT_NS})
    run = write_run(tmp_path / "shifted", truth)
    pairs = pair_messages(run.timeline(), uncertainty_ns={})
    assert len(pairs) == 4 * 4 * 8
    assert (pairs["recv_end_ns"] >= pairs["send_start_ns"]).all()
    assert run.report().clock_uncertainty_s[1] == 2e-6
