import pytest

from pptoolkit.telemetry import Event, EventWriter, Flag, Op, RunDirectory
from pptoolkit.telemetry.event_writer import to_rows
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.links import LinkPairing, LinkSample

MS = 1_000_000
LAYOUT = RankLayout(rank=1, stage_to_rank=(0, 1), ranks=2)
SHIFT = -3_700 * MS  # rank 1's clock is 3.7 s ahead of rank 0's: offset = rank 0's - rank 1's


def clock(offset_ns: int = SHIFT, uncertainty_ns: int = 1000) -> Event:
    return Event(-1, -1, -1, Op.CLOCK, -1, 0, offset_ns, uncertainty_ns, 0, 0)


def send(at_ns: int, *, step: int = 0, micro_batch: int = 0) -> Event:
    return Event(step, 0, micro_batch, Op.SEND, 1, at_ns, at_ns + 1, 4000, 0, 0)


def post(at_ns: int, *, step: int = 0, micro_batch: int = 0) -> Event:
    """A post, given rank 0's time and written in rank 1's."""
    return Event(step, 1, micro_batch, Op.RECV_POST, 0, at_ns - SHIFT, at_ns - SHIFT, 0, 0, 0)


def receive(start_ns: int, end_ns: int, *, step: int = 0, micro_batch: int = 0, size: int = 4000) -> Event:
    return Event(step, 1, micro_batch, Op.RECV, 0, start_ns - SHIFT, end_ns - SHIFT, size, 0, 0)


def measure(run: RunDirectory, sends: list[Event], own: list[Event]) -> LinkSample | None:
    writer = EventWriter(run, rank=0)
    writer.append(sends)
    writer.flush()
    pairing = LinkPairing(run, LAYOUT)
    pairing.add_own(to_rows(own)[0])
    samples = pairing.poll()
    assert len(samples) <= 1
    writer.close()
    return samples[0] if samples else None


@pytest.mark.parametrize(
    ("sent", "posted", "waited", "transfer"),
    [
        (10 * MS, 5 * MS, (6 * MS, 14 * MS), 4 * MS),  # the receiver was there first: the rest is waiting
        (10 * MS, 12 * MS, (12 * MS, 14 * MS), 2 * MS),  # the sender was there first
        (10 * MS, 5 * MS, (11 * MS, 14 * MS), 4 * MS),  # under way already when the wait began
    ],
)
def test_a_transfer_runs_from_when_both_ends_are_ready(
    run: RunDirectory, sent: int, posted: int, waited: tuple[int, int], transfer: int
) -> None:
    sample = measure(run, [send(sent)], [clock(), post(posted), receive(*waited)])
    assert sample == LinkSample(Link(0, 1), transfer_ns=transfer, newest_transfer_ns=transfer, newest_bytes=4000)


def test_a_receive_whose_transfer_nobody_saw_is_an_unreliable_sample_however_long_it_took(run: RunDirectory) -> None:
    unseen = receive(6 * MS, 14 * MS)._replace(flags=Flag.TRANSFER_UNSEEN)
    assert measure(run, [send(10 * MS)], [clock(), post(5 * MS), unseen]) == LinkSample(Link(0, 1), unreliable=1)


def test_a_receive_that_did_not_block_is_no_sample(run: RunDirectory) -> None:
    sample = measure(run, [send(10 * MS)], [clock(), post(5 * MS), receive(20 * MS, 20 * MS + 1000)])
    assert sample is not None
    assert (sample.transfer_ns, sample.unreliable) == (0, 0)


def test_a_transfer_below_three_uncertainties_is_counted_and_not_shown(run: RunDirectory) -> None:
    own = [
        clock(uncertainty_ns=MS),
        post(5 * MS),
        receive(6 * MS, 12 * MS),
        post(5 * MS, micro_batch=1),
        receive(6 * MS, 14 * MS, micro_batch=1),
    ]
    sample = measure(run, [send(10 * MS), send(10 * MS, micro_batch=1)], own)
    assert sample is not None
    assert (sample.transfer_ns, sample.unreliable) == (4 * MS, 1)


def test_a_rank_whose_clock_was_never_compared_gives_no_throughput(run: RunDirectory) -> None:
    sample = measure(run, [send(10 * MS)], [post(5 * MS), receive(6 * MS, 14 * MS)])
    assert sample is not None
    assert (sample.transfer_ns, sample.unreliable) == (0, 1)


def test_throughput_is_that_of_the_newest_step(run: RunDirectory) -> None:
    sends = [send(10 * MS, step=0), send(110 * MS, step=1), send(130 * MS, step=1, micro_batch=1)]
    own = [
        clock(),
        receive(6 * MS, 18 * MS, step=0),
        receive(105 * MS, 112 * MS, step=1),
        receive(125 * MS, 133 * MS, step=1, micro_batch=1, size=6000),
    ]
    sample = measure(run, sends, own)
    assert sample == LinkSample(Link(0, 1), transfer_ns=13 * MS, newest_transfer_ns=5 * MS, newest_bytes=10_000)


def test_ends_that_are_seen_at_different_times_find_each_other(run: RunDirectory) -> None:
    writer, pairing = EventWriter(run, rank=0), LinkPairing(run, LAYOUT)
    pairing.add_own(to_rows([clock(), post(5 * MS), receive(6 * MS, 14 * MS)])[0])
    assert pairing.poll() == []
    writer.append([send(10 * MS)])
    writer.flush()
    (sample,) = pairing.poll()
    assert sample.transfer_ns == 4 * MS
    assert pairing.poll() == []
    writer.append([send(20 * MS, micro_batch=1)])
    writer.close()
    assert pairing.poll() == []
    pairing.add_own(to_rows([receive(18 * MS, 22 * MS, micro_batch=1)])[0])
    (sample,) = pairing.poll()
    assert sample.transfer_ns == 2 * MS


def test_receives_without_a_partner_do_not_pile_up(run: RunDirectory) -> None:
    pairing = LinkPairing(run, LAYOUT)
    for step in range(20):
        pairing.add_own(to_rows([receive(m, m + MS, step=step, micro_batch=m) for m in range(1000)])[0])
    assert len(pairing._receives) <= 1 << 13
    assert pairing.poll() == []


def test_a_rank_without_neighbours_reads_nothing(run: RunDirectory) -> None:
    pairing = LinkPairing(run, RankLayout(rank=0))
    pairing.add_own(to_rows([receive(0, MS)])[0])
    assert pairing.poll() == []
