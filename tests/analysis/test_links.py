import pytest

from pptoolkit.analysis.links import measure_links, pair_messages
from pptoolkit.analysis.steps import steady_steps
from pptoolkit.analysis.timeline import build_timeline
from pptoolkit.telemetry import Flag, Op
from tests.analysis.events import event, table
from tests.analysis.synthetic_run import Truth, write_run

MB = 1_000_000
SHARP = {1: 1_000}


def message(*, send, post, wait, m=0):
    """An activation from stage 0 to stage 1; times in milliseconds."""
    return [
        event(Op.SEND, *send, stage=0, peer=1, micro_batch=m, rank=0, bytes=MB),
        event(Op.RECV_POST, post, post, stage=1, peer=0, micro_batch=m, rank=1),
        event(Op.RECV, *wait, stage=1, peer=0, micro_batch=m, rank=1, bytes=MB),
    ]


def whole(end):
    return [event(Op.STEP, 0, end, rank=rank) for rank in (0, 1)]


def test_transfer_runs_from_the_send_and_the_wait_before_it_is_the_senders_fault():
    #  wait 10 ........ send 30 --- arrived 34
    pairs = pair_messages(build_timeline(table(message(send=(30, 31), post=5, wait=(10, 34)))), uncertainty_ns=SHARP)
    row = pairs.iloc[0]
    assert (row["wait_s"], row["transfer_s"]) == pytest.approx((0.020, 0.004))
    assert row["blocked"]
    assert row["reliable"]


def test_transfer_runs_from_the_post_when_the_receiver_came_late():
    pairs = pair_messages(build_timeline(table(message(send=(0, 1), post=12, wait=(12, 15)))), uncertainty_ns=SHARP)
    assert (pairs.iloc[0]["wait_s"], pairs.iloc[0]["transfer_s"]) == pytest.approx((0.0, 0.003))


def test_asking_late_for_what_lies_there_is_no_transfer_even_where_asking_takes_long():
    #  send 0 -- arrived, unseen ....... asked for at 40, given at 40.3
    pairs = pair_messages(build_timeline(table(message(send=(0, 1), post=0, wait=(40, 40.3)))), uncertainty_ns=SHARP)
    assert not pairs.iloc[0]["blocked"]
    # A wait that is a fair part of it, or a long one, was for the message.
    fair = pair_messages(build_timeline(table(message(send=(0, 1), post=0, wait=(0.7, 1.0)))), uncertainty_ns=SHARP)
    long = pair_messages(build_timeline(table(message(send=(0, 1), post=0, wait=(40, 44)))), uncertainty_ns=SHARP)
    assert fair.iloc[0]["blocked"]
    assert long.iloc[0]["blocked"]


def test_a_receive_that_did_not_block_is_no_sample():
    rows = message(send=(0, 1), post=0, wait=(50, 50.01)) + message(send=(60, 61), post=0, wait=(55, 64), m=1)
    timeline = build_timeline(table(rows + whole(100)))
    (link,) = measure_links(steady_steps(timeline, ranks=2), timeline.iloc[:0], uncertainty_ns=SHARP)
    assert (link.messages, link.samples, link.unblocked, link.unreliable) == (2, 1, 1, 0)
    assert link.transfer.median == pytest.approx(0.004)
    assert link.throughput.median == pytest.approx(MB / 0.004)


def test_a_transfer_below_three_clock_uncertainties_is_counted_but_not_reported():
    timeline = build_timeline(table(message(send=(10, 11), post=0, wait=(5, 12)) + whole(100)))
    (link,) = measure_links(steady_steps(timeline, ranks=2), timeline.iloc[:0], uncertainty_ns={1: 700_000})
    assert (link.samples, link.unreliable, link.transfer, link.throughput) == (0, 1, None, None)


def test_a_receive_whose_transfer_nobody_saw_gives_a_wait_and_no_throughput():
    send, post, receive = message(send=(30, 31), post=5, wait=(10, 34))
    timeline = build_timeline(table([send, post, {**receive, "flags": int(Flag.TRANSFER_UNSEEN)}, *whole(100)]))
    (link,) = measure_links(steady_steps(timeline, ranks=2), timeline.iloc[:0], uncertainty_ns=SHARP)
    assert (link.samples, link.unreliable, link.transfer, link.throughput) == (0, 1, None, None)
    assert link.wait_s_per_step == pytest.approx(0.020)


def test_without_a_clock_reading_no_transfer_is_reliable():
    timeline = build_timeline(table(message(send=(30, 31), post=5, wait=(10, 34)) + whole(100)))
    (link,) = measure_links(steady_steps(timeline, ranks=2), timeline.iloc[:0], uncertainty_ns={})
    assert (link.samples, link.unreliable) == (0, 1)


def test_the_probe_stands_beside_the_measurement():
    probe = build_timeline(
        table([event(Op.PROBE, 0, 2, step=-1, stage=0, peer=1, bytes=4 * MB), event(Op.PROBE, 3, 4, step=-1, stage=0, peer=1)])
    )
    timeline = build_timeline(table(message(send=(30, 31), post=5, wait=(10, 34)) + whole(100)))
    (link,) = measure_links(steady_steps(timeline, ranks=2), probe, uncertainty_ns=SHARP)
    assert link.probe_bytes_per_second == pytest.approx(2e9)


def test_every_direction_of_every_border_is_measured(tmp_path):
    links = write_run(tmp_path / "r", Truth(forward_s=[0.004] * 6, cuts=[2, 4], transfer_s=0.001)).links()
    assert [(link.src_stage, link.dst_stage, link.kind) for link in links] == [
        (0, 1, "activation"),
        (1, 0, "gradient"),
        (1, 2, "activation"),
        (2, 1, "gradient"),
    ]
    assert all(link.transfer.median == pytest.approx(0.001, rel=1e-3) for link in links if link.transfer)
    assert sum(link.samples for link in links) > 0
