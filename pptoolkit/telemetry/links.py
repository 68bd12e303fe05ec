"""Honest link measurements: a receive on this rank paired with its send on the neighbour, on aligned clocks.

sender     |--send--|
receiver  post ....|---blocked receive---|
                |<-- transfer: from the later of send start and post, to receive end
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pptoolkit.telemetry.clock import ClockMap, ClockOffset, Times
from pptoolkit.telemetry.event_reader import EventReader
from pptoolkit.telemetry.event_writer import EventRows
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.run_directory import RunDirectory

UNBLOCKED_NS = 50_000
"""A receive that waited less than this had arrived before, unseen: its end says nothing about the transfer."""

RELIABLE_UNCERTAINTIES = 3
"""A transfer shorter than this many clock uncertainties is not reported as throughput."""

_MAX_PENDING = 1 << 13
_MAX_OFFSETS = 64
_COLUMNS = ["step", "stage", "micro_batch", "op", "peer", "start_ns", "end_ns", "bytes", "rank"]
_Key = tuple[int, int, int, int]  # step, micro-batch, source stage, destination stage


@dataclass(slots=True)
class LinkSample:
    """What was learned of one link since the last look: reliable transfers together, those of the newest step, and how many were not."""

    link: Link
    transfer_ns: int = 0
    newest_transfer_ns: int = 0
    newest_bytes: int = 0
    unreliable: int = 0


@dataclass(slots=True)
class _Receive:
    posted_ns: int | None = None
    start_ns: int = 0
    end_ns: int | None = None
    bytes: int = 0

    def row(self) -> tuple[int, int, int, int]:
        """Post, start, end, bytes. Without a post of its own, the buffer was handed over when the wait began."""
        return self.start_ns if self.posted_ns is None else self.posted_ns, self.start_ns, self.end_ns or 0, self.bytes


def transfer_ns(*, sent_ns: Times, posted_ns: Times, received_ns: Times) -> Times:
    """Return how long messages were under way: from when both ends were ready until they were there. All times on one clock."""
    took: Times = received_ns - np.maximum(sent_ns, posted_ns)
    return took


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
        self._receives: OrderedDict[_Key, _Receive] = OrderedDict()
        self._sends: OrderedDict[_Key, int] = OrderedDict()  # start on the sender's clock
        self._clocks: dict[int, list[ClockOffset]] = {}

    def add_own(self, rows: EventRows) -> None:
        """Take this rank's events in."""
        for step, stage, micro_batch, op, peer, start_ns, end_ns, size, *_ in rows.tolist():
            if op == Op.CLOCK:
                self._add_clock(self._layout.rank, ClockOffset(start_ns, end_ns, size))
            elif op in (Op.RECV, Op.RECV_POST) and (peer, stage) in self._links:
                receive = self._receives.setdefault((step, micro_batch, peer, stage), _Receive())
                if op == Op.RECV_POST:
                    receive.posted_ns = start_ns
                else:
                    receive.start_ns, receive.end_ns, receive.bytes = start_ns, end_ns, size
        _forget_oldest(self._receives)

    def poll(self) -> list[LinkSample]:
        """Read what the neighbours wrote since the last call and return what it says about the links."""
        if not self._links:
            return []
        self._take_sends()
        ready: dict[Link, list[_Key]] = {}
        for key, receive in self._receives.items():
            if receive.end_ns is not None and key in self._sends:
                ready.setdefault(self._links[key[2], key[3]], []).append(key)
        return [self._measure(link, keys) for link, keys in ready.items()]

    def _take_sends(self) -> None:
        table = self._reader.poll(columns=_COLUMNS)
        table = table.filter(pc.or_(pc.equal(table["op"], int(Op.SEND)), pc.equal(table["op"], int(Op.CLOCK))))
        columns = [table[name].to_pylist() for name in _COLUMNS]
        for step, stage, micro_batch, op, peer, start_ns, end_ns, size, rank in zip(*columns, strict=True):
            if op == Op.CLOCK:
                self._add_clock(rank, ClockOffset(start_ns, end_ns, size))
            elif (stage, peer) in self._links:
                self._sends[step, micro_batch, stage, peer] = start_ns
        _forget_oldest(self._sends)

    def _measure(self, link: Link, keys: list[_Key]) -> LinkSample:
        sample = LinkSample(link)
        # Columns: step; post, start, end and bytes of the receive; start of the send.
        table = np.array([(key[0], *self._receives.pop(key).row(), self._sends.pop(key)) for key in keys], dtype=np.int64)
        table = table[table[:, 3] - table[:, 2] >= UNBLOCKED_NS]
        own, other = self._clock(self._layout.rank), self._clock(self._layout.rank_of(link.src_stage))
        if own is None or other is None:
            sample.unreliable = len(table)
            return sample
        step, posted, _, received, size, sent = table.T
        took_ns = transfer_ns(sent_ns=other.align(sent), posted_ns=own.align(posted), received_ns=own.align(received))
        uncertainty_ns = own.uncertainty(received) + other.uncertainty(sent)
        reliable = (took_ns > 0) & (took_ns >= RELIABLE_UNCERTAINTIES * uncertainty_ns)
        sample.unreliable = int(len(table) - reliable.sum())
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


def _forget_oldest(pending: OrderedDict[Any, Any]) -> None:
    while len(pending) > _MAX_PENDING:
        pending.popitem(last=False)
