"""Tensors between the ranks of a pipeline: receives posted early, sends finished late, each of them timed and counted."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from pptoolkit.engine.routes import Route, Routes
from pptoolkit.engine.stage import PooledStage
from pptoolkit.errors import PeerLostError
from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.lower import finished_sends, input_of, output_of
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.recorder import LONG_WAIT_NS, Recorder

_FORWARD = (ActionKind.FORWARD, ActionKind.SEND_ACTIVATION, ActionKind.RECV_ACTIVATION)
_TAG = 0  # one for all: messages between two ranks match by order

Span = tuple[int, int]  # begin and end, in nanoseconds


@dataclass(slots=True, eq=False)
class Message:
    """The tensors of one border and micro-batch, maybe none, as one rank sends or receives them in every step.

    Args:
        action: What the schedule calls it.
        stage: This rank's stage that it leaves or reaches.
        peer_stage: The stage at the other end.
        peer: Rank of the other end in the pipeline.
        route: How it gets there.
        forward: Whether activations travel, and not gradients.

    Attributes:
        works: Transfers on their way; None for a message that is not.
        tensors: What is sent lives until the transport is done with it.
        posted_ns: When this rank said, in this step, that the message may come; 0: it has not, or nothing is to come.
        waited: When the wait for it began and ended in this step; None: it has not, or nothing was to come.
        sent: When its sending began and ended in this step, likewise.
        last_wait_ns: How long the last wait for it took, also that of the step before.
    """

    action: Action
    stage: PooledStage
    peer_stage: int
    peer: int
    route: Route
    forward: bool
    works: list[dist.Work] | None = field(default=None, init=False)
    tensors: Sequence[torch.Tensor] = field(default=(), init=False)
    posted_ns: int = field(default=0, init=False)
    waited: Span | None = field(default=None, init=False)
    sent: Span | None = field(default=None, init=False)
    last_wait_ns: int = field(default=0, init=False)

    def record_arrival(self, recorder: Recorder) -> None:
        """Write down what was noted of a message that came."""
        stage, m = self.action.stage, self.action.micro_batch
        if self.posted_ns:
            recorder.record(Op.RECV_POST, stage, m, self.peer_stage, self.posted_ns, self.posted_ns)
        if self.waited is not None:
            size = self.stage.received_bytes(m, gradient=not self.forward)
            recorder.record(Op.RECV, stage, m, self.peer_stage, *self.waited, size)

    def record_departure(self, recorder: Recorder) -> None:
        """Write down what was noted of a message that was sent."""
        if self.sent is not None:
            stage, m = self.action.stage, self.action.micro_batch
            size = self.stage.sent_bytes(m, gradient=not self.forward)
            recorder.record(Op.SEND, stage, m, self.peer_stage, *self.sent, size)


class Messages:
    """What one rank sends and receives in a step. Everything that a step need not look up is looked up before the first.

    Times are noted in the messages, and written down by :class:`Message` when there is time for it.

    Args:
        stages: The rank's stages by index.
        schedule: The schedule of the whole pipeline.
        rank: This rank in the pipeline.
        group_ranks: Global rank of each pipeline rank.
        recorder: Where events go.
        routes: How the other ranks are reached.
    """

    def __init__(
        self,
        stages: Mapping[int, PooledStage],
        schedule: Schedule,
        *,
        rank: int,
        group_ranks: Sequence[int],
        recorder: Recorder,
        routes: Routes,
    ) -> None:
        self._recorder, self._rank, self._group_ranks, self._routes = recorder, group_ranks[rank], group_ranks, routes
        self._messages: dict[Action, Message] = {}
        self._over: dict[Action, list[Message]] = {}  # by compute action: sends that are over once it has its input
        for action in schedule.orders[rank]:
            for message in (input_of(action, schedule), output_of(action, schedule)):
                if message is not None:
                    self._messages[message] = self._message(message, stages, schedule)
        for action, sends in finished_sends(schedule)[rank].items():
            self._over[action] = [self._messages[send] for send in sends]
        self._sends = [m for m in self._messages.values() if m.action.kind in (ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT)]
        self.step = 0

    def of(self, action: Action | None) -> Message | None:
        """Return the message that a send or receive of the schedule stands for; None for None."""
        return self._messages[action] if action is not None else None

    def finished_at(self, action: Action) -> Sequence[Message]:
        """Return the sends that are certainly over once a compute action has its input."""
        return self._over.get(action, ())

    def post(self, message: Message) -> None:
        """Say that ``message`` may come."""
        action, stage = message.action, message.stage
        group, peer = message.route
        buffers = stage.buffers_for_activation(action.micro_batch) if message.forward else stage.buffers_for_gradient(action.micro_batch)
        message.works = self._start(message, buffers, lambda t: group.recv([t], peer, _TAG))
        message.waited, message.posted_ns = None, time.monotonic_ns() if message.works else 0

    def wait(self, message: Message) -> None:
        """Wait until ``message`` is there."""
        works, message.works = message.works, None
        if not works:
            return
        action, start = message.action, time.monotonic_ns()
        self._recorder.in_flight = (Op.RECV, action.stage, action.micro_batch, start)
        if message.last_wait_ns > LONG_WAIT_NS:
            self._recorder.bubbles.announce(message.last_wait_ns)
        self._wait(message, works)
        end = time.monotonic_ns()
        self._recorder.in_flight = None
        message.waited, message.last_wait_ns = (start, end), end - start

    def send(self, message: Message) -> None:
        """Send what a compute action left for another rank, without waiting for it to arrive."""
        stage, action = message.stage, message.action
        # The group's own calls, not those of torch.distributed: these look up again at every message what never changes.
        group, peer = message.route
        own = stage.activations(action.micro_batch) if message.forward else stage.gradients_to_send(action.micro_batch)
        tensors = [t if t.is_contiguous() else t.contiguous() for t in own]
        start = time.monotonic_ns()
        message.works = self._start(message, tensors, lambda t: group.send([t], peer, _TAG))
        message.tensors, message.sent = tensors, (start, time.monotonic_ns()) if message.works else None

    def conclude(self, message: Message, *, known_over: bool = False) -> None:
        """Wait until what was sent has arrived, and let go of it."""
        works, message.works = message.works, None
        if not works:
            return
        start = time.monotonic_ns()
        self._wait(message, works)
        message.tensors = ()
        if not known_over:
            action = message.action
            self._recorder.record(Op.SEND_WAIT, action.stage, action.micro_batch, message.peer_stage, start, time.monotonic_ns())

    def finish(self) -> None:
        """Wait until everything sent has arrived."""
        for message in self._sends:
            self.conclude(message)

    def forget(self) -> None:
        """Let go of everything, also after a step that broke off."""
        for message in self._messages.values():
            message.works, message.tensors = None, ()

    def _message(self, action: Action, stages: Mapping[int, PooledStage], schedule: Schedule) -> Message:
        forward = action.kind in _FORWARD
        sends = action.kind in (ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT)
        peer_stage = action.stage + (1 if forward == sends else -1)
        peer = schedule.stage_to_rank[peer_stage]
        route = self._routes.sending_to(peer) if sends else self._routes.receiving_from(peer)
        return Message(action, stages[action.stage], peer_stage, peer, route, forward)

    def _start(
        self, message: Message, tensors: Sequence[torch.Tensor], transfer: Callable[[torch.Tensor], dist.Work | None]
    ) -> list[dist.Work]:
        """Start one transfer a tensor; those without elements need none."""
        works: list[dist.Work] = []
        try:
            for tensor in tensors:
                if tensor.numel():
                    work = transfer(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
                    assert work is not None, "this rank is not in the pipeline's group"
                    works.append(work)
        except RuntimeError as error:
            raise self._peer_lost(message, error) from error
        return works

    def _wait(self, message: Message, works: Sequence[dist.Work]) -> None:
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._peer_lost(message, error) from error

    def _peer_lost(self, message: Message, cause: Exception) -> PeerLostError:
        action = message.action
        return PeerLostError(
            f"rank {self._rank} lost the connection to rank {self._group_ranks[message.peer]} (stage {message.peer_stage}) at "
            f"{action.kind.value}, stage {action.stage}, micro-batch {action.micro_batch}, step {self.step}: {str(cause).strip()}"
        )
