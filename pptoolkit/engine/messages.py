"""Tensors between the ranks of a pipeline: receives posted early, sends finished late, each of them timed and counted."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pptoolkit.engine.stage import PooledStage
from pptoolkit.errors import PeerLostError
from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.lower import finished_sends
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.recorder import Recorder

_FORWARD = (ActionKind.FORWARD, ActionKind.SEND_ACTIVATION, ActionKind.RECV_ACTIVATION)


class Messages:
    """What one rank sends and receives in a step. A message is the tensors of one border and micro-batch, maybe none.

    Args:
        stages: The rank's stages by index.
        schedule: The schedule of the whole pipeline.
        rank: This rank in the pipeline.
        group_ranks: Global rank of each pipeline rank.
        recorder: Where events go.
    """

    def __init__(
        self, stages: Mapping[int, PooledStage], schedule: Schedule, *, rank: int, group_ranks: Sequence[int], recorder: Recorder
    ) -> None:
        self._stages, self._recorder = stages, recorder
        self._rank = group_ranks[rank]
        self._peer = [group_ranks[r] for r in schedule.stage_to_rank]
        self._group = next(iter(stages.values())).group
        self._over = finished_sends(schedule)[rank]
        self._receiving: dict[tuple[bool, int, int], list[dist.Work]] = {}  # (forward, stage, micro-batch)
        self._sending: dict[Action, tuple[list[dist.Work], list[torch.Tensor]]] = {}
        self.step = 0

    def post_receive(self, action: Action) -> None:
        """Say that the input of a later compute action may come."""
        forward, stage, m = action.kind in _FORWARD, self._stages[action.stage], action.micro_batch
        source = action.stage + (-1 if forward else 1)
        buffers = stage.buffers_for_activation(m) if forward else stage.buffers_for_gradient(m)
        works = self._each(lambda t: dist.irecv(t, src=self._peer[source], group=self._group), buffers, source, action)
        self._receiving[forward, action.stage, m] = works
        if works:
            now = time.monotonic_ns()
            self._recorder.record(Op.RECV_POST, action.stage, m, source, now, now)

    def await_input(self, action: Action) -> None:
        """Wait until the input of compute ``action`` is there, where it comes from another rank."""
        forward = action.kind in _FORWARD
        works = self._receiving.pop((forward, action.stage, action.micro_batch), None)
        if works is None:
            return
        if works:
            source = action.stage + (-1 if forward else 1)
            start = time.monotonic_ns()
            self._recorder.in_flight = (Op.RECV, action.stage, action.micro_batch, start)
            self._wait(works, source, action)
            end = time.monotonic_ns()
            self._recorder.in_flight = None
            size = self._stages[action.stage].received_bytes(action.micro_batch, gradient=not forward)
            self._recorder.record(Op.RECV, action.stage, action.micro_batch, source, start, end, size)
        for send in self._over.get(action, ()):
            self._finish(send, known_over=bool(works))  # only what really came proves that the other rank is past a send

    def send(self, action: Action) -> None:
        """Send what a compute action left for another rank, without waiting for it to arrive."""
        forward, stage, m = action.kind in _FORWARD, self._stages[action.stage], action.micro_batch
        target = action.stage + (1 if forward else -1)
        tensors = [t.contiguous() for t in (stage.activations(m) if forward else stage.gradients_to_send(m))]
        start = time.monotonic_ns()
        works = self._each(lambda t: dist.isend(t, dst=self._peer[target], group=self._group), tensors, target, action)
        self._sending[action] = works, tensors  # the tensors must live until the transport is done with them
        if works:
            size = sum(t.numel() * t.element_size() for t in tensors)
            self._recorder.record(Op.SEND, action.stage, m, target, start, time.monotonic_ns(), size)

    def finish(self) -> None:
        """Wait until everything sent has arrived."""
        for send in list(self._sending):
            self._finish(send)

    def forget(self) -> None:
        """Let go of everything, also after a step that broke off."""
        self._receiving.clear()
        self._sending.clear()

    def _finish(self, send: Action, *, known_over: bool = False) -> None:
        works, _tensors = self._sending.pop(send)
        if not works:
            return
        target = send.stage + (1 if send.kind in _FORWARD else -1)
        start = time.monotonic_ns()
        self._wait(works, target, send)
        if not known_over:
            self._recorder.record(Op.SEND_WAIT, send.stage, send.micro_batch, target, start, time.monotonic_ns())

    def _each(
        self, start: Callable[[torch.Tensor], dist.Work | None], tensors: Sequence[torch.Tensor], peer: int, action: Action
    ) -> list[dist.Work]:
        """Start one transfer a tensor; those without elements need none."""
        try:
            return [_posted(start(t)) for t in tensors if t.numel()]
        except RuntimeError as error:
            raise self._peer_lost(peer, action, error) from error

    def _wait(self, works: Sequence[dist.Work], peer: int, action: Action) -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._peer_lost(peer, action, error) from error

    def _peer_lost(self, peer_stage: int, action: Action, cause: Exception) -> PeerLostError:
        return PeerLostError(
            f"rank {self._rank} lost the connection to rank {self._peer[peer_stage]} (stage {peer_stage}) at {action.kind.value}, "
            f"stage {action.stage}, micro-batch {action.micro_batch}, step {self.step}: {str(cause).strip()}"
        )


def _posted(work: Any) -> dist.Work:
    assert work is not None, "this rank is not in the pipeline's group"
    return work  # type: ignore[no-any-return]
