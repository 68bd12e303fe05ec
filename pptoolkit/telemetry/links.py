"""Honest link measurements: a receive on this rank paired with its send on the neighbour, on aligned clocks.

sender     |--send--|
receiver  post ....|---blocked receive---|
                |<-- transfer: from the later of send start and post, to receive end
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pptoolkit.telemetry.clock import ClockMap, ClockOffset, Times
from pptoolkit.telemetry.event_reader import EventReader
from pptoolkit.telemetry.event_writer import EventRows
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.run_directory import RunDirectory

UNBLOCKED_NS = 50_000
"""A receive that waited less than this had arrived before, unseen: its end says nothing about the transfer."""

HARDLY_BLOCKED_NS = 1_000_000
"""Asking for what is there already can take this long where the caches are cold and the machine is busy."""

RELIABLE_UNCERTAINTIES = 3
"""A transfer shorter than this many clock uncertainties is not reported as throughput."""

_MAX_PENDING = 1 << 13
_MAX_OFFSETS = 64
_COLUMNS = ["step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns", "bytes", "rank"]
_Table = npt.NDArray[np.int64]
_STEP, _KEY, _SRC, _DST, _START, _END, _BYTES, _POSTED, _UNSEEN = range(9)  # columns of a table of transfers


@dataclass(slots=True)
class LinkSample:
    """What was learned of one link since the last look: reliable transfers together, those of the newest step, and how many were not."""

    link: Link
    transfer_ns: int = 0
    newest_transfer_ns: int = 0
    newest_bytes: int = 0
    unreliable: int = 0


def transfer_ns(*, sent_ns: Times, posted_ns: Times, received_ns: Times) -> Times:
    """Return how long messages were under way: from when both ends were ready until they were there. All times on one clock."""
    took: Times = received_ns - np.maximum(sent_ns, posted_ns)
    return took


def saw_arrival(*, waited_ns: Times, took_ns: Times) -> npt.NDArray[np.bool_]:
    """Return which receives waited until their message came, so that their end is the transfer's.

    A short wait at the end of something long is no such thing: the message had arrived, and asking for it took that long.

    Args:
        waited_ns: How long each receive blocked.
        took_ns: From when both ends were ready until the receive was over.
    """
    seen: npt.NDArray[np.bool_] = (waited_ns >= UNBLOCKED_NS) & ((waited_ns >= HARDLY_BLOCKED_NS) | (4 * waited_ns >= took_ns))
    return seen


class LinkPairing:
    """Pairs this rank's receives with its neighbours' sends, read from their event files in the same run directory.

    Memory is bounded: what finds no partner in time (a neighbour on another disk, a step that was not kept) is forgotten.

    Args:
        run: The run directory.
        layout: The rank's stages and links.
        attempt: Only events of this attempt are paired.
    """

    def __init__(self, run: RunDirectory, layout: RankLayout, *, attempt: int = 0) -> None:
        self._layout = layout
        self._links = {(link.src_stage, link.dst_stage): link for link in layout.incoming}
        neighbours = sorted({layout.rank_of(link.src_stage) for link in layout.incoming})
        self._reader = EventReader(run, ranks=neighbours, attempt=attempt)
        self._posts = self._receives = self._sends = np.empty((0, 9), dtype=np.int64)  # what waits for its partner
        self._own: list[EventRows] = []
        self._own_events = 0
        self._clocks: dict[int, list[ClockOffset]] = {}

    def add_own(self, rows: EventRows) -> None:
        """Take this rank's events in."""
        for row in rows[rows[:, 3] == Op.CLOCK].tolist():
            self._add_clock(self._layout.rank, ClockOffset(*row[5:8]))
        self._own.append(rows[(rows[:, 3] == Op.RECV) | (rows[:, 3] == Op.RECV_POST)])
        self._own_events += len(self._own[-1])
        while self._own_events > 4 * _MAX_PENDING:
            self._own_events -= len(self._own.pop(0))

    def poll(self) -> list[LinkSample]:
        """Read what the neighbours wrote since the last call and return what it says about the links."""
        if not self._links:
            return []
        own = np.concatenate([np.empty((0, 10), dtype=np.int64), *self._own])
        self._own, self._own_events = [], 0
        is_post = own[:, 3] == Op.RECV_POST
        self._posts = np.concatenate([self._posts, self._transfers(own[is_post], receiver=True)])
        receives = self._transfers(own[~is_post], receiver=True)
        # Without a post of its own, the buffer was handed over when the wait began.
        post = _find(receives, self._posts)
        receives[:, _POSTED] = np.where(post < 0, receives[:, _START], self._posts[post, _START] if len(self._posts) else 0)
        self._posts = self._posts[_find(self._posts, receives) < 0][-_MAX_PENDING:]
        self._receives = np.concatenate([self._receives, receives])
        self._sends = np.concatenate([self._sends, self._take_sends()])
        send = _find(self._receives, self._sends)
        paired, sent_ns = self._receives[send >= 0], self._sends[send[send >= 0], _START]
        self._sends = self._sends[_find(self._sends, paired) < 0][-_MAX_PENDING:]
        self._receives = self._receives[send < 0][-_MAX_PENDING:]
        samples = []
        for (src, dst), link in self._links.items():
            here = (paired[:, _SRC] == src) & (paired[:, _DST] == dst)
            if here.any():
                samples.append(self._measure(link, paired[here], sent_ns[here]))
        return samples

    def _take_sends(self) -> _Table:
        table = self._reader.poll(columns=_COLUMNS)
        table = table.filter(pc.or_(pc.equal(table["op"], int(Op.SEND)), pc.equal(table["op"], int(Op.CLOCK))))
        columns = {name: table[name].to_numpy().astype(np.int64) for name in _COLUMNS}
        rank, rows = columns.pop("rank"), np.stack(list(columns.values()), axis=1)
        is_clock = rows[:, 3] == Op.CLOCK
        for of_rank, row in zip(rank[is_clock].tolist(), rows[is_clock].tolist(), strict=True):
            self._add_clock(of_rank, ClockOffset(*row[5:8]))
        return self._transfers(rows[~is_clock], receiver=False)

    def _transfers(self, rows: EventRows, *, receiver: bool) -> _Table:
        """Return the events over this rank's incoming links; a transfer's key is the same at both ends."""
        src, dst = (rows[:, 4], rows[:, 1]) if receiver else (rows[:, 1], rows[:, 4])
        stages = len(self._layout.stage_to_rank)
        key = ((rows[:, 0] << 24 | rows[:, 2] & 0xFFFFFF) * stages + src) * stages + dst
        unseen = rows[:, 9] & int(Flag.TRANSFER_UNSEEN) if receiver else np.zeros(len(rows), dtype=np.int64)
        table = np.stack([rows[:, 0], key, src, dst, rows[:, 5], rows[:, 6], rows[:, 7], rows[:, 5], unseen], axis=1)
        known = np.zeros(len(rows), dtype=bool)
        for link in self._links:
            known |= (src == link[0]) & (dst == link[1])
        return table[known]

    def _measure(self, link: Link, received: _Table, sent_ns: _Table) -> LinkSample:
        sample = LinkSample(link)
        own, other = self._clock(self._layout.rank), self._clock(self._layout.rank_of(link.src_stage))
        waited_ns = received[:, _END] - received[:, _START]
        if own is None or other is None:
            sample.unreliable = int((waited_ns >= UNBLOCKED_NS).sum())
            return sample
        step, size, end_ns = received[:, _STEP], received[:, _BYTES], received[:, _END]
        took_ns = transfer_ns(sent_ns=other.align(sent_ns), posted_ns=own.align(received[:, _POSTED]), received_ns=own.align(end_ns))
        uncertainty_ns = own.uncertainty(end_ns) + other.uncertainty(sent_ns)
        seen = saw_arrival(waited_ns=waited_ns, took_ns=took_ns)
        reliable = seen & (received[:, _UNSEEN] == 0) & (took_ns > 0) & (took_ns >= RELIABLE_UNCERTAINTIES * uncertainty_ns)
        sample.unreliable = int(seen.sum() - reliable.sum())
        if reliable.any():
            newest = reliable & (step == step[reliable].max())
            sample.transfer_ns = int(took_ns[reliable].sum())
            sample.newest_transfer_ns, sample.newest_bytes = int(took_ns[newest].sum()), int(size[newest].sum())
        return sample

    def _add_clock(self, rank: int, offset: ClockOffset) -> None:
        offsets = self._clocks.setdefault(rank, [])
        offsets.append(offset)
        del offsets[:-_MAX_OFFSETS]

    def _clock(self, rank: int) -> ClockMap | None:
        """The clock of a rank, or None while it is not known how far it is from rank 0's."""
        offsets = self._clocks.get(rank, [])
        return ClockMap(offsets) if offsets or rank == 0 else None


def _find(wanted: _Table, among: _Table) -> _Table:
    """Return for each transfer the row of the newest one with its key, or -1."""
    if not len(among):
        return np.full(len(wanted), -1, dtype=np.int64)
    order = np.argsort(among[:, _KEY], kind="stable")
    last = np.searchsorted(among[order, _KEY], wanted[:, _KEY], side="right") - 1
    row = order[np.maximum(last, 0)]
    return np.where((last >= 0) & (among[row, _KEY] == wanted[:, _KEY]), row, -1)
