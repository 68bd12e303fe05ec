"""Messages between GPUs: they travel on streams of their own, and the host waits for none of them.

What NCCL is given returns at once, and waiting for it makes the compute stream wait, not the host. So nothing here is timed by
the host. Stamps on the compute stream tell when it came to a wait and when it went on: that is the wait for a message. When the
message itself was under way nobody has measured: it may lie behind others in its line, and its kernel starts when it can. So a
receive is marked :attr:`~pptoolkit.telemetry.events.Flag.TRANSFER_UNSEEN`, counts as an unreliable sample of its link, and
never as throughput.

    compute stream  ==B3==[wait: RECV]==F4==[hand over: SEND]==
    NCCL, this way       ....recv m4...
    NCCL, that way                              ....send m4....
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pptoolkit.engine.device_clock import DeviceClock, HostClock, StreamClock
from pptoolkit.engine.messages import Message, Messages
from pptoolkit.engine.routes import Routes
from pptoolkit.engine.stage import PooledStage
from pptoolkit.schedule import Schedule
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.recorder import Recorder

_UNSEEN = int(Flag.TRANSFER_UNSEEN)


class StreamMessages(Messages):
    """As :class:`Messages`, for a rank on a GPU. A buffer that is lent again is safe: NCCL's streams wait for the compute stream."""

    def __init__(
        self,
        stages: Mapping[int, PooledStage],
        schedule: Schedule,
        *,
        rank: int,
        group_ranks: Sequence[int],
        recorder: Recorder,
        routes: Routes,
        clock: StreamClock,
    ) -> None:
        super().__init__(stages, schedule, rank=rank, group_ranks=group_ranks, recorder=recorder, routes=routes)
        self._clock = clock

    def post(self, message: Message) -> None:
        super().post(message)
        message.posted_ns = 0  # the host's time is that of queueing

    def wait(self, message: Message) -> None:
        """Let the compute stream wait until ``message`` is there."""
        works, message.works = message.works, None
        if not works:
            return
        begin = self._clock.stamp()
        self._wait(message, works)
        stage, m = message.action.stage, message.action.micro_batch
        size = message.stage.received_bytes(m, gradient=not message.forward)
        self._clock.record_message(Op.RECV, stage, m, message.peer_stage, begin, self._clock.stamp(), bytes=size, flags=_UNSEEN)

    def send(self, message: Message) -> None:
        begin = self._clock.stamp()
        super().send(message)
        if message.sent is not None:
            message.sent = None  # the host's times are those of queueing
            stage, m = message.action.stage, message.action.micro_batch
            size = message.stage.sent_bytes(m, gradient=not message.forward)
            self._clock.record_message(Op.SEND, stage, m, message.peer_stage, begin, self._clock.stamp(), bytes=size)

    def conclude(self, message: Message, *, known_over: bool = False) -> None:
        """Let the compute stream wait until what was sent has arrived, and let go of it; in the step it is over already."""
        works, message.works = message.works, None
        if works:
            self._wait(message, works)
            message.tensors = ()

    def finish(self) -> None:
        for message in self._sends:
            if message.works:
                begin = self._clock.stamp()
                self.conclude(message)
                stage, m = message.action.stage, message.action.micro_batch
                self._clock.record_message(Op.SEND_WAIT, stage, m, message.peer_stage, begin, self._clock.stamp())


def make_messages(stages: Mapping[int, PooledStage], schedule: Schedule, *, clock: DeviceClock, **named: Any) -> Messages:
    """Return the messages of a rank whose ops ``clock`` times; ``named`` are the other arguments of :class:`Messages`."""
    if isinstance(clock, HostClock):
        return Messages(stages, schedule, **named)
    return StreamMessages(stages, schedule, clock=clock, **named)
