"""What single causes cost: the run's steps replayed without each of them. Findings, or nothing where the cost is below the noise."""

from collections.abc import Iterator, Sequence

import numpy as np

from pptoolkit.analysis.bubbles import BACKWARD_CODES
from pptoolkit.analysis.finding import Finding
from pptoolkit.analysis.replay import PARTS, Recipe, Replay
from pptoolkit.analysis.replay_nodes import Seconds
from pptoolkit.analysis.stalls import Stall, micro_batch_share, without_stalls
from pptoolkit.telemetry.events import Op

LEAST_COST = 0.04  # of the step time; below, nothing is said
_SLOWER_LINK = 2.0  # times the other links
_VARIES = 0.10  # spread of one op from step to step
_UNEVEN = 0.5  # share of the ops' variance that follows the micro-batch


def find_slow_links(replay: Replay) -> Iterator[Finding]:
    """Yield the links that are slower than the others and cost time; or all of them together, where they are alike and cost much."""
    weights = replay.costs.weight_s
    links = _link_edges(replay)
    if not links:
        return
    typical = {link: float(np.median(weights[edges])) for link, edges in links.items()}
    own_all = replay.costs.own_s["link"]
    any_slow = False
    for link, edges in links.items():
        others = [seconds for other, seconds in typical.items() if other != link] or [0.0]
        usual = float(np.median(others))
        if typical[link] <= _SLOWER_LINK * usual:
            continue
        cheaper, own = weights.copy(), own_all.copy()
        cheaper[edges] = np.minimum(cheaper[edges], usual)
        ends = replay.graph.target[edges]
        rest = replay.graph.target[[e for other, found in links.items() if other != link for e in found]]
        own[ends] = np.minimum(own[ends], float(np.median(own_all[rest])) if len(rest) else 0.0)
        step_s = _played(replay, weight=cheaper, link_own=own)
        cost, sure = _cost(replay, step_s)
        if cost > LEAST_COST:
            any_slow = True
            yield Finding(
                cause="slow_link",
                kind="link",
                stage=link[1],
                rank=None,
                link=link,
                cost_ratio=cost,
                confidence=sure,
                evidence=(
                    f"a message from stage {link[0]} to stage {link[1]} travels {_ms(typical[link])}, over the other links {_ms(usual)}; "
                    f"with those the step would be {cost:.0%} shorter"
                ),
            )
    cost, sure = _cost(replay, replay.step_times(Recipe(parts=frozenset(PARTS) - {"link"})))
    if not any_slow and cost > 2.5 * LEAST_COST:
        median = float(np.median(list(typical.values())))
        yield Finding(
            cause="slow_link",
            kind="link",
            stage=None,
            rank=None,
            cost_ratio=cost,
            confidence=sure,
            evidence=f"messages travel {_ms(median)} over every link; with free links the step would be {cost:.0%} shorter",
        )


def find_slow_devices(replay: Replay, *, pipeline_ranks: int) -> Iterator[Finding]:
    """Yield ranks that compute longer than the same stage does on the other replicas."""
    nodes = replay.nodes
    if len(nodes.ranks) <= pipeline_ranks:
        return
    rows_rank = nodes.rank[replay.compute]
    usual = replay.typical_s(by_stage=True)
    compute = np.asarray([replay.compute_s[rows_rank == rank].sum(axis=0) for rank in nodes.ranks])
    for place, rank in enumerate(nodes.ranks):
        peers = compute[[p for p, r in enumerate(nodes.ranks) if r != rank and r % pipeline_ranks == rank % pipeline_ranks]]
        others = np.median(peers, axis=0)
        ratio = float(np.median(compute[place] / others))
        if ratio < 1 + 2 * LEAST_COST:
            continue
        faster = replay.compute_s.copy()
        mine = rows_rank == rank
        faster[mine] = np.minimum(faster[mine], usual[mine])
        cost, sure = _cost(replay, replay.step_times(Recipe(compute_s=faster)))
        if cost > LEAST_COST / 2:
            stage = int(nodes.stage[replay.compute][mine][0])
            back = np.isin(nodes.op[replay.compute], BACKWARD_CODES) & mine
            yield Finding(
                cause="slower_device",
                kind="backward" if replay.compute_s[back].sum() > replay.compute_s[mine].sum() / 2 else "forward",
                stage=stage,
                rank=int(rank),
                cost_ratio=cost,
                confidence=sure,
                evidence=(
                    f"rank {rank} computes {_ms(float(np.median(compute[place])))} a step, stage {stage} on the other replicas "
                    f"{_ms(float(np.median(others)))}: {ratio:.2f} times as long for the same layers"
                ),
            )


def find_slow_hosts(replay: Replay) -> Iterator[Finding]:
    """Yield ranks that spend more time between their ops than the others, and cost time by it."""
    nodes, gap = replay.nodes, replay.costs.gap_s["host"]
    mine = {int(rank): np.flatnonzero(nodes.rank == rank) for rank in nodes.ranks}
    per_rank = {rank: float(np.median(gap[rows].sum(axis=0))) for rank, rows in mine.items()}
    for rank, rows in mine.items():
        others = [seconds for other, seconds in per_rank.items() if other != rank]
        usual = float(np.median(others)) if others else 0.0
        if per_rank[rank] <= 2 * usual or per_rank[rank] - usual < LEAST_COST * float(np.median(replay.measured_s)):
            continue
        less = gap.copy()
        less[rows] *= usual / per_rank[rank]
        cost, sure = _cost(replay, _played(replay, host_gap=less))
        if cost > LEAST_COST:
            yield Finding(
                cause="host",
                kind="host",
                stage=int(nodes.stage[replay.compute][nodes.rank[replay.compute] == rank][0]),
                rank=rank,
                cost_ratio=cost,
                confidence=sure,
                evidence=(
                    f"rank {rank} spends {_ms(per_rank[rank])} a step between its ops, the others {_ms(usual)}; "
                    f"that is {cost:.0%} of the step"
                ),
            )


def find_loader(replay: Replay) -> Iterator[Finding]:
    """Yield one finding where loading data costs all ranks time."""
    cost, sure = _cost(replay, replay.step_times(Recipe(parts=frozenset(PARTS) - {"data"})))
    if cost > 2 * LEAST_COST:
        seconds = replay.costs.own_s["data"].sum(axis=0)
        each = float(np.median(seconds)) / len(replay.nodes.ranks)
        yield Finding(
            cause="slow_loader",
            kind="data",
            stage=None,
            rank=None,
            cost_ratio=cost,
            confidence=sure,
            evidence=f"ranks wait {_ms(each)} a step for their data on average; without that the step would be {cost:.0%} shorter",
        )


def find_jitter(replay: Replay, stalls: Sequence[Stall]) -> Iterator[Finding]:
    """Yield one finding where ops that vary from step to step cost time, stalls left out."""
    calm = without_stalls(replay, list(stalls))
    usual = np.median(calm, axis=1, keepdims=True)
    step_s = replay.step_times(Recipe(compute_s=calm))
    even = replay.step_times(Recipe(compute_s=np.broadcast_to(usual, calm.shape)))
    cost, sure = float(1 - even.sum() / step_s.sum()), float(np.mean(even < step_s))
    rank, spread, others = _most_varied(replay, calm)
    # One rank that varies much more than the others is no noise of the machine, and is named sooner.
    single = spread > max(2 * others, _VARIES)
    if cost <= (LEAST_COST / 2 if single else LEAST_COST):
        return
    share = micro_batch_share(replay, calm)
    if share > _UNEVEN:
        yield Finding(
            cause="uneven_micro_batches",
            kind="jitter",
            stage=None,
            rank=None,
            cost_ratio=cost,
            confidence=share,
            evidence=(
                f"ops of the same micro-batch are long or short together on all stages, forward and backward (correlation {share:.0%}); "
                f"with even micro-batches the step would be {cost:.0%} shorter"
            ),
        )
        return
    yield Finding(
        cause="jitter",
        kind="jitter",
        stage=int(replay.nodes.stage[replay.compute][replay.nodes.rank[replay.compute] == rank][0]) if single else None,
        rank=rank if single else None,
        cost_ratio=cost,
        confidence=sure,
        evidence=(
            f"the same op of rank {rank} varies by {spread:.0%} from step to step, of the others by {others:.0%}; "
            f"with steady ops the step would be {cost:.0%} shorter"
        ),
    )


def _most_varied(replay: Replay, calm: Seconds) -> tuple[int, float, float]:
    nodes = replay.nodes
    low, high = np.percentile(calm, [10, 90], axis=1)
    spread = (high - low) / np.maximum(np.median(calm, axis=1), 1e-12) / 2.56
    of_rank = {int(rank): float(np.median(spread[nodes.rank[replay.compute] == rank])) for rank in nodes.ranks}
    rank = max(of_rank, key=of_rank.__getitem__)
    others = [value for other, value in of_rank.items() if other != rank]
    return rank, of_rank[rank], float(np.median(others)) if others else 0.0


def _link_edges(replay: Replay) -> dict[tuple[int, int], list[int]]:
    """Return the edges that are messages, by (source stage, destination stage); of a rendezvous, those of both ends."""
    nodes, graph = replay.nodes, replay.graph
    links: dict[tuple[int, int], list[int]] = {}
    for index, target in enumerate(graph.target):
        op = int(nodes.op[target]) if target < nodes.count else -1
        if op in (int(Op.RECV), int(Op.SEND)):
            ends = int(nodes.peer[target]), int(nodes.stage[target])
            links.setdefault(ends if op == int(Op.RECV) else ends[::-1], []).append(index)
    return links


def _played(replay: Replay, *, weight: Seconds | None = None, link_own: Seconds | None = None, host_gap: Seconds | None = None) -> Seconds:
    gap, own, weights = replay.inputs(Recipe())
    if link_own is not None:
        own = own - replay.costs.own_s["link"] + link_own
    if host_gap is not None:
        gap = gap - replay.costs.gap_s["host"] + host_gap
    ready, end = replay.graph.play(gap, own, weights if weight is None else weight)
    return np.asarray((end[replay.end] - ready[replay.begin]).max(axis=0))


def _cost(replay: Replay, step_s: Seconds) -> tuple[float, float]:
    """Return the share of the step time that is gone, and the share of the steps in which at least a third of that is."""
    saved = 1 - step_s / replay.replayed_s
    cost = float(np.median(saved))
    return cost, float(np.mean(saved > cost / 3)) if cost > 0 else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
