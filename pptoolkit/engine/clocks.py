"""Measurements between ranks while nothing trains: how far their clocks are apart, and what an idle link carries."""

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from pptoolkit.telemetry.clock import ClockOffset, estimate_offset

_PATIENT_ROUNDS = 12
_MOST_ROUNDS = 200
_ENOUGH = -1  # instead of a time: no monotonic clock is negative
_SMALL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """How the idle-link probe measures a border between two stages."""

    payload_bytes: int = 1 << 20
    repeats: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One border, one way: the quickest of the repeats, in nanoseconds."""

    stage: int
    peer_stage: int
    bytes: int
    start_ns: int
    one_way_ns: int


class ClockExchange:
    """Measures, now and then, how far each rank's clock is from rank 0's; every rank makes one, together.

    Ranks on one kernel and in one time namespace read the very same monotonic clock: they share one offset, and those on rank
    0's clock are exactly 0 away; an exchange could only add its own error. Of every other clock one rank exchanges time stamps
    with rank 0, both ways, and tells the others.

    Args:
        interval_s: Time between two exchanges; rank 0's counts.
    """

    def __init__(self, *, interval_s: float = 30.0) -> None:
        self._clocks = _clock_identities()
        self._interval_s = interval_s
        self._due_s = float("-inf")
        self._sharpest_ns = 0  # best uncertainty so far: what this network can do

    @property
    def due(self) -> bool:
        """Whether it is time, as rank 0 sees it; False on all other ranks, which hear it from rank 0."""
        return dist.get_rank() == 0 and self.needed and time.monotonic() >= self._due_s

    @property
    def needed(self) -> bool:
        """Whether there is a second clock at all."""
        return len(set(self._clocks)) > 1

    def measure(self) -> ClockOffset:
        """Return this rank's clock offset to rank 0 with its uncertainty; every rank calls it together."""
        self._due_s = time.monotonic() + self._interval_s
        rank, clocks = dist.get_rank(), self._clocks
        mine = ClockOffset(time.monotonic_ns(), 0, 0)
        for other, clock in enumerate(clocks):
            if clock == clocks[0] or clocks.index(clock) != other:
                continue
            if rank == 0:
                _answer(other)
            elif rank == other:
                mine = estimate_offset(_ask(usual_ns=self._sharpest_ns))
                self._sharpest_ns = min(self._sharpest_ns or mine.uncertainty_ns, mine.uncertainty_ns)
            mine = _hand_on(mine, [r for r, c in enumerate(clocks) if c == clock])
        return mine


def probe_links(stage_to_rank: Sequence[int], probe: LinkProbe) -> list[ProbeResult]:
    """Measure latency and bandwidth of every border between stages on different ranks; every rank calls it together."""
    rank = dist.get_rank()
    results: list[ProbeResult] = []
    for stage in range(len(stage_to_rank) - 1):
        first, second = stage_to_rank[stage], stage_to_rank[stage + 1]
        if first == second or rank not in (first, second):
            continue
        for leader, follower in ((stage, stage + 1), (stage + 1, stage)):
            if rank == stage_to_rank[leader]:
                results += _lead_probe(leader, follower, stage_to_rank[follower], probe)
            else:
                for size in (_SMALL_BYTES, probe.payload_bytes):
                    _follow(stage_to_rank[leader], size=size, repeats=probe.repeats)
    return results


def _clock_identities() -> list[int]:
    """Return, for every rank, a number that two ranks share only if they read the same monotonic clock."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        name = f"{boot.read_text().strip()}/{os.readlink('/proc/self/ns/time')}"
    except OSError:
        name = f"{os.uname().nodename}/{os.getpid()}"  # not Linux: assume that no clock is shared
    identity = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
    gathered = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, torch.tensor([identity]))
    return [int(t.item()) for t in gathered]


def _hand_on(offset: ClockOffset, ranks: list[int]) -> ClockOffset:
    """Give what the first of ``ranks`` measured to the others of them, whose clock is the same."""
    rank = dist.get_rank()
    values = torch.tensor([offset.local_ns, offset.offset_ns, offset.uncertainty_ns])
    for other in ranks[1:]:
        if rank == ranks[0]:
            dist.send(values, dst=other)
        elif rank == other:
            dist.recv(values, src=ranks[0])
    return ClockOffset(*values.tolist()) if rank in ranks else offset


def _ask(*, usual_ns: int) -> list[tuple[int, int, int, int]]:
    """Exchange until the shortest round trip has not become shorter for a while, and is not much worse than usual.

    On a busy host most round trips are slow: it takes many to catch a quick one.
    """
    samples: list[tuple[int, int, int, int]] = []
    reply = torch.zeros(2, dtype=torch.int64)
    best, since = 0, 0
    while len(samples) < _MOST_ROUNDS and (since < _PATIENT_ROUNDS or (usual_ns and best > 3 * usual_ns)):
        asked = time.monotonic_ns()
        dist.send(torch.tensor([asked]), dst=0)
        dist.recv(reply, src=0)
        answered = time.monotonic_ns()
        samples.append((asked, int(reply[0]), int(reply[1]), answered))
        delay = answered - asked - int(reply[1] - reply[0])
        best, since = (delay, 0) if len(samples) == 1 or delay < best else (best, since + 1)
    dist.send(torch.tensor([_ENOUGH]), dst=0)
    return samples


def _answer(other: int) -> None:
    question = torch.zeros(1, dtype=torch.int64)
    while True:
        dist.recv(question, src=other)
        got = time.monotonic_ns()
        if int(question) == _ENOUGH:
            return
        dist.send(torch.tensor([got, time.monotonic_ns()]), dst=other)


def _lead_probe(stage: int, peer_stage: int, peer: int, probe: LinkProbe) -> list[ProbeResult]:
    """Measure one direction: latency by small messages both ways, bandwidth by a large one that a small one acknowledges.

    A payload that came back would measure both directions at once, and a border may be fast one way only.
    """
    start, round_trip = _lead(peer, size=_SMALL_BYTES, repeats=probe.repeats)
    latency = round_trip // 2
    small = ProbeResult(stage=stage, peer_stage=peer_stage, bytes=_SMALL_BYTES, start_ns=start, one_way_ns=latency)
    start, round_trip = _lead(peer, size=probe.payload_bytes, repeats=probe.repeats)
    one_way = max(latency, round_trip - latency)
    return [small, ProbeResult(stage=stage, peer_stage=peer_stage, bytes=probe.payload_bytes, start_ns=start, one_way_ns=one_way)]


def _lead(peer: int, *, size: int, repeats: int) -> tuple[int, int]:
    """Return (start, round trip) of the quickest one; the first one only opens the connection."""
    payload, acknowledgement = torch.zeros(size, dtype=torch.uint8), torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        start = time.monotonic_ns()
        dist.send(payload, dst=peer)
        dist.recv(acknowledgement, src=peer)
        trips.append((start, time.monotonic_ns() - start))
    return min(trips[1:], key=lambda trip: trip[1])


def _follow(peer: int, *, size: int, repeats: int) -> None:
    payload, acknowledgement = torch.zeros(size, dtype=torch.uint8), torch.zeros(_SMALL_BYTES, dtype=torch.uint8)
    for _ in range(repeats + 1):
        dist.recv(payload, src=peer)
        dist.send(acknowledgement, dst=peer)
