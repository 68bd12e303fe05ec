"""What is known of a compute action before the first step, and the timer around it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pptoolkit.engine.device_clock import DeviceClock
from pptoolkit.engine.messages import Message
from pptoolkit.engine.stage import PooledStage
from pptoolkit.errors import StageError
from pptoolkit.schedule import Action, ActionKind
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.recorder import Recorder

OPS = {
    ActionKind.FORWARD: Op.FORWARD,
    ActionKind.BACKWARD: Op.BACKWARD,
    ActionKind.BACKWARD_INPUT: Op.BACKWARD_INPUT,
    ActionKind.BACKWARD_WEIGHT: Op.BACKWARD_WEIGHT,
}
_VERB = {
    Op.FORWARD: "forward",
    Op.BACKWARD: "backward",
    Op.BACKWARD_INPUT: "backward (input part)",
    Op.BACKWARD_WEIGHT: "backward (weight part)",
}


@dataclass(slots=True, eq=False)
class Planned:
    """One compute action of this rank, with all that a step would look up.

    Args:
        action: The action.
        stage: The stage that it runs on.
        input: What it waits for from another rank.
        output: What another rank waits for.
        finished: Sends that are over once its input is there.
        before: The stage before, where it lives on this rank.
        after: The stage after, where it lives on this rank.
    """

    action: Action
    stage: PooledStage
    input: Message | None
    output: Message | None
    finished: Sequence[Message]
    before: PooledStage | None
    after: PooledStage | None
    op: int = field(init=False)  # as a number: combining enum members costs more than recording an event
    index: int = field(init=False)
    micro_batch: int = field(init=False)
    layers: int = field(init=False)  # of the stage

    def __post_init__(self) -> None:
        self.layers = len(self.stage.module.layers)
        self.op = int(OPS[self.action.kind])
        self.index, self.micro_batch = self.action.stage, self.action.micro_batch


class ComputeTimer:
    """Times one compute action, and names its place if it fails."""

    __slots__ = ("_clock", "_planned", "_rank", "_recorder", "_step", "end_ns", "start_ns")

    def __init__(self, planned: Planned, clock: DeviceClock, recorder: Recorder, *, rank: int, step: int) -> None:
        self._planned, self._clock, self._recorder, self._rank, self._step = planned, clock, recorder, rank, step
        self.start_ns = self.end_ns = 0

    def __enter__(self) -> "ComputeTimer":
        planned = self._planned
        self._clock.mark()
        self.start_ns = start_ns = time.monotonic_ns()
        self._recorder.in_flight = (planned.op, planned.index, planned.micro_batch, start_ns)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.end_ns = time.monotonic_ns()
        self._clock.mark_end()
        if isinstance(error, Exception):
            planned, cause = self._planned, _root(error)
            raise StageError(
                rank=self._rank,
                stage=planned.index,
                micro_batch=planned.micro_batch,
                step=self._step,
                doing=_VERB[Op(planned.op)],
                cause=cause,
            ) from cause
        self._recorder.in_flight = None


def _root(error: BaseException) -> BaseException:
    """torch wraps a layer's exception with a print of its inputs; the layer's own is what a person needs."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error
