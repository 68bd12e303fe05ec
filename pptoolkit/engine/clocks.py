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

_ROUNDS = 12
_SMALL_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProbe:
    """How the idle-link probe measures a border between two stages."""

    payload_bytes: int = 1 << 20
    repeats: int = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One border, one way (half of a round trip): the quickest of the repeats, in nanoseconds."""

    stage: int
    peer_stage: int
    bytes: int
    start_ns: int
    one_way_ns: int


def exchange_clocks() -> ClockOffset:
    """Return this rank's clock offset to rank 0 with its uncertainty; every rank calls it together.

    Ranks on one kernel and in one time namespace read the very same monotonic clock: their offset is exactly 0, and
    an exchange could only add its own error. The others exchange time stamps both ways.
    """
    clocks = _clock_identities()
    rank = dist.get_rank()
    mine = ClockOffset(time.monotonic_ns(), 0, 0)
    for other in range(1, dist.get_world_size()):
        if clocks[other] == clocks[0]:
            continue
        if rank == 0:
            _answer(other)
        elif rank == other:
            mine = estimate_offset(_ask())
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
            for size in (_SMALL_BYTES, probe.payload_bytes):
                if rank == stage_to_rank[leader]:
                    start, one_way = _lead(stage_to_rank[follower], size=size, repeats=probe.repeats)
                    results.append(ProbeResult(stage=leader, peer_stage=follower, bytes=size, start_ns=start, one_way_ns=one_way))
                else:
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


def _ask() -> list[tuple[int, int, int, int]]:
    samples = []
    reply = torch.zeros(2, dtype=torch.int64)
    for _ in range(_ROUNDS):
        asked = time.monotonic_ns()
        dist.send(torch.tensor([asked]), dst=0)
        dist.recv(reply, src=0)
        answered = time.monotonic_ns()
        samples.append((asked, int(reply[0]), int(reply[1]), answered))
    return samples


def _answer(other: int) -> None:
    question = torch.zeros(1, dtype=torch.int64)
    for _ in range(_ROUNDS):
        dist.recv(question, src=other)
        got = time.monotonic_ns()
        dist.send(torch.tensor([got, time.monotonic_ns()]), dst=other)


def _lead(peer: int, *, size: int, repeats: int) -> tuple[int, int]:
    """Return (start, one way) of the quickest round trip; the first one only opens the connection."""
    payload = torch.zeros(size, dtype=torch.uint8)
    trips = []
    for _ in range(repeats + 1):
        start = time.monotonic_ns()
        dist.send(payload, dst=peer)
        dist.recv(payload, src=peer)
        trips.append((start, (time.monotonic_ns() - start) // 2))
    return min(trips[1:], key=lambda trip: trip[1])


def _follow(peer: int, *, size: int, repeats: int) -> None:
    payload = torch.zeros(size, dtype=torch.uint8)
    for _ in range(repeats + 1):
        dist.recv(payload, src=peer)
        dist.send(payload, dst=peer)
