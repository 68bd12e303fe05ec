"""The nodes of a replay: what every rank did in every usable step, the same things in each, as arrays of (nodes, steps).

A node is known by its rank, op, stage, micro-batch and peer, and by its number where a step has several of these. Things that only some
steps have (a checkpoint, a pause) are no nodes: they lie in the gap before the next one.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.events import Op

_REGULAR = (*COMPUTE_CODES, int(Op.RECV), int(Op.SEND), int(Op.SEND_WAIT), int(Op.REDUCE), int(Op.OPTIMIZER), int(Op.DATA))
IRREGULAR = {int(Op.CHECKPOINT): "checkpoint", int(Op.PAUSE): "pause"}
_MOST_CELLS = 6_000_000  # nodes times steps: some seconds and a hundred megabytes
_KEY = ["rank", "op", "stage", "micro_batch", "peer", "again"]

Seconds = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Moment(NamedTuple):
    """An irregular event: ``kind`` is checkpoint or pause, ``lane`` the place of its step."""

    kind: str
    rank: int
    lane: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """What every rank did in every step. Node arrays are of shape (nodes,), times of shape (nodes, steps), from each step's start.

    Args:
        steps: The steps, by number.
        begin_s: When each rank's step began, of shape (ranks, steps).
        finish_s: When it ended.
        post_s: When the receive of a node was posted, or a rank's share of a collective; NaN where that is not known.
        stalls: Irregular events.
    """

    steps: Indices
    ranks: Indices
    begin_s: Seconds
    finish_s: Seconds
    rank: Indices
    replica: Indices
    op: Indices
    stage: Indices
    micro_batch: Indices
    peer: Indices
    start_s: Seconds
    end_s: Seconds
    post_s: Seconds
    stalls: tuple[Moment, ...]

    @property
    def count(self) -> int:
        return len(self.rank)

    @property
    def duration_s(self) -> Seconds:
        return self.end_s - self.start_s


def collect_nodes(steady: SteadySteps) -> Nodes | None:
    """Return the nodes of the usable steps that are made of the same things; None if there are none.

    Of very long steps only the latest ones are taken, as many as fit some seconds of work.
    """
    events = steady.events
    whole = events[events["op"] == int(Op.STEP)]
    if whole.empty:
        return None
    regular = events[events["op"].isin(_REGULAR)]
    most = max(1, _MOST_CELLS // max(1, len(regular) // max(1, steady.count)))
    steps = np.sort(whole["step"].unique())[-most:]
    regular = regular[regular["step"].isin(steps)].sort_values(["rank", "step", "start_ns"], kind="stable")
    regular = regular.assign(again=regular.groupby(["rank", "step", "op", "stage", "micro_batch", "peer"]).cumcount())
    # What most steps have is a node; a step that lacks one is not replayed.
    codes, unique = pd.factorize(pd.MultiIndex.from_frame(regular[_KEY]))
    common = np.bincount(codes, minlength=len(unique)) > len(steps) / 2
    place = np.cumsum(common) - 1
    kept = common[codes]
    rows, node = regular[kept], place[codes[kept]]
    lane = np.searchsorted(steps, rows["step"].to_numpy())
    start = np.full((int(common.sum()), len(steps)), np.nan)
    end = start.copy()
    origin = whole.groupby("step")["start_ns"].min().reindex(steps).to_numpy(dtype=np.int64)
    start[node, lane] = (rows["start_ns"].to_numpy() - origin[lane]) / 1e9
    end[node, lane] = (rows["end_ns"].to_numpy() - origin[lane]) / 1e9
    complete = ~np.isnan(start).any(axis=0)
    if not complete.any() or not len(start):
        return None
    names = pd.DataFrame(unique[common].to_list(), columns=_KEY)
    replica = events.drop_duplicates("rank").set_index("rank")["replica"]
    posts = _posts(events, names, steps, origin)
    ranks = np.sort(whole["rank"].unique())
    begin, finish = _windows(whole, ranks, steps, origin)
    chosen = np.flatnonzero(complete)
    return Nodes(
        steps=steps[chosen],
        ranks=ranks,
        begin_s=begin[:, chosen],
        finish_s=finish[:, chosen],
        rank=names["rank"].to_numpy(dtype=np.int64),
        replica=replica.reindex(names["rank"]).to_numpy(dtype=np.int64),
        op=names["op"].to_numpy(dtype=np.int64),
        stage=names["stage"].to_numpy(dtype=np.int64),
        micro_batch=names["micro_batch"].to_numpy(dtype=np.int64),
        peer=names["peer"].to_numpy(dtype=np.int64),
        start_s=start[:, chosen],
        end_s=end[:, chosen],
        post_s=posts[:, chosen],
        stalls=_stalls(events, steps, chosen, origin),
    )


def _posts(events: pd.DataFrame, names: pd.DataFrame, steps: Indices, origin: Indices) -> Seconds:
    """Return when each receive was posted, and when a rank's share of the step's last collective was."""
    found = np.full((len(names), len(steps)), np.nan)
    key = ["rank", "stage", "micro_batch", "peer"]
    pairs: tuple[tuple[Op, Op, Literal["first", "last"]], ...] = ((Op.RECV_POST, Op.RECV, "first"), (Op.REDUCE_POST, Op.REDUCE, "last"))
    for post, op, kept in pairs:
        posts = events[(events["op"] == int(post)) & events["step"].isin(steps)]
        waits = names[names["op"] == int(op)].reset_index().drop_duplicates(key, keep=kept)
        joined = posts.merge(waits[["index", *key]], on=key)
        lane = np.searchsorted(steps, joined["step"].to_numpy())
        found[joined["index"].to_numpy(), lane] = (joined["start_ns"].to_numpy() - origin[lane]) / 1e9
    return found


def _windows(whole: pd.DataFrame, ranks: Indices, steps: Indices, origin: Indices) -> tuple[Seconds, Seconds]:
    found = []
    for column in ("start_ns", "end_ns"):
        table = whole.drop_duplicates(["rank", "step"], keep="last").pivot(index="rank", columns="step", values=column)
        found.append((table.reindex(index=ranks, columns=steps).to_numpy(dtype=np.float64) - origin) / 1e9)
    return found[0], found[1]


def _stalls(events: pd.DataFrame, steps: Indices, chosen: Indices, origin: Indices) -> tuple[Moment, ...]:
    lanes = {int(steps[lane]): place for place, lane in enumerate(chosen)}
    rows = events[events["op"].isin(IRREGULAR) & events["step"].isin(list(lanes))]
    first = origin[np.searchsorted(steps, rows["step"].to_numpy())]
    columns = (rows[name].tolist() for name in ("op", "rank", "step"))
    times = (((rows[name].to_numpy() - first) / 1e9).tolist() for name in ("start_ns", "end_ns"))
    return tuple(Moment(IRREGULAR[op], rank, lanes[step], a, b) for op, rank, step, a, b in zip(*columns, *times, strict=True))
