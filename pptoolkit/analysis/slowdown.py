"""How much longer the steps are than they would be if no op were slower than others of its type, and which ops that comes from.

The straggler-free step has every compute op at the mean of its type, and every transfer and collective at the median of its type, over all
ranks and steps; host time is left out of both sides. For what one type, or one stage, costs, only its ops keep their own times.
Source: J. Lin et al., "Understanding Stragglers in Large Model Training Using What-if Analysis", 2025, section 3.
"""

from dataclasses import dataclass

import numpy as np

from pptoolkit.analysis.bubbles import COMPUTE_CODES
from pptoolkit.analysis.replay import PARTS, Recipe, Replay
from pptoolkit.analysis.replay_nodes import Indices, Seconds
from pptoolkit.telemetry.events import Op

_TYPES = {
    int(Op.FORWARD): "forward",
    int(Op.BACKWARD): "backward",
    int(Op.BACKWARD_INPUT): "backward_input",
    int(Op.BACKWARD_WEIGHT): "backward_weight",
    int(Op.OPTIMIZER): "optimizer",
    int(Op.REDUCE): "collective",
    int(Op.DATA): "data",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """Step times over straggler-free ones; 1 where nothing is slower than its peers.

    Args:
        ratio: All ops as they were.
        by_type: Only the ops of one type as they were.
        by_stage: Only the ops of one pipeline rank as they were.
        launch_delay_ratio: Measured steps over the same without host time between the ops.
        ideal_step_s: The straggler-free step.
    """

    ratio: float
    by_type: dict[str, float]
    by_stage: dict[int, float]
    launch_delay_ratio: float
    ideal_step_s: float

    def to_dict(self) -> dict[str, object]:
        return {
            "ratio": self.ratio,
            "by_type": dict(self.by_type),
            "by_stage": {str(stage): ratio for stage, ratio in self.by_stage.items()},
            "launch_delay_ratio": self.launch_delay_ratio,
            "ideal_step_s": self.ideal_step_s,
        }


def measure_slowdown(replay: Replay, *, pipeline_ranks: int) -> Slowdown:
    """Return the slowdown of a run's steps against straggler-free ones.

    Args:
        replay: The steps.
        pipeline_ranks: Ranks of one replica.
    """
    return _Slowdown(replay, pipeline_ranks).measure()


class _Slowdown:
    def __init__(self, replay: Replay, pipeline_ranks: int) -> None:
        self.replay = replay
        self.gap, self.own, self.weight = replay.inputs(Recipe(parts=frozenset(PARTS) - {"host"}))
        nodes = replay.nodes
        extra = replay.graph.nodes - nodes.count
        self.types = np.asarray([*(self._type(i) for i in range(nodes.count)), *[""] * extra])
        self.ranks: Indices = np.concatenate([nodes.rank % pipeline_ranks, np.full(extra, -1)])
        self.even_own, self.even_weight = self._evened()

    def measure(self) -> Slowdown:
        replay = self.replay
        as_was, ideal = self._step(self.own, self.weight), self._step(self.even_own, self.even_weight)
        return Slowdown(
            ratio=as_was / ideal,
            by_type={name: self._only(self.types == name) / ideal for name in sorted({str(name) for name in self.types} - {""})},
            by_stage={int(rank): self._only(self.ranks == rank) / ideal for rank in np.unique(self.ranks) if rank >= 0},
            launch_delay_ratio=float(replay.measured_s.mean()) / as_was,
            ideal_step_s=ideal,
        )

    def _only(self, mine: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> float:
        own = np.where(mine[:, None], self.own, self.even_own)
        weight = np.where(mine[self.replay.graph.target][:, None], self.weight, self.even_weight)
        return self._step(own, weight)

    def _step(self, own: Seconds, weight: Seconds) -> float:
        ready, end = self.replay.graph.play(self.gap, own, weight)
        return float(self.replay.periods(ready, end, own).mean())

    def _evened(self) -> tuple[Seconds, Seconds]:
        own, weight = self.own.copy(), self.weight.copy()
        target = self.replay.graph.target
        target_types = self.types[target] if len(target) else self.types[:0]
        # Joins and hubs are no ops: their edges weigh nothing.
        ops = np.concatenate([self.replay.nodes.op, np.full(len(self.types) - self.replay.nodes.count, -1)])
        for name in set(self.types) - {""}:
            mine = self.types == name
            compute = bool(np.isin(ops[mine], (*COMPUTE_CODES, int(Op.OPTIMIZER), int(Op.DATA))).all())
            own[mine] = own[mine].mean() if compute else np.median(own[mine])
            edges = target_types == name
            if edges.any():
                weight[edges] = np.median(weight[edges])
        return own, weight

    def _type(self, node: int) -> str:
        nodes = self.replay.nodes
        op = int(nodes.op[node])
        if op == int(Op.REDUCE):
            # Collectives of other members, or of another place in the step, are other types.
            kind = "all" if nodes.stage[node] < 0 else "rank" if nodes.peer[node] < 0 else "tied"
            return f"collective-replicas{nodes.micro_batch[node]}" if nodes.stage[node] == nodes.peer[node] >= 0 else f"collective-{kind}"
        if op in _TYPES:
            return _TYPES[op]
        up = nodes.peer[node] > nodes.stage[node]
        name = {int(Op.SEND): "send", int(Op.RECV): "recv", int(Op.SEND_WAIT): "send_wait"}[op]
        return f"{'forward' if up == (op != int(Op.RECV)) else 'backward'}_{name}"
