"""torch's schedule runtime with our actions: it walks the list, we receive, compute, send, and time each of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from pptoolkit.engine.device_clock import DeviceClock, HostClock
from pptoolkit.engine.stage import PooledStage
from pptoolkit.engine.stage_module import LayerMarks
from pptoolkit.engine.torch_private import ComputationType, PipelineContext, ScheduleRuntime, TorchAction, quiet_runtime_log
from pptoolkit.errors import PeerLostError, StageError
from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.lower import finished_sends, lower
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.recorder import Recorder

LossFunction = Callable[[Any, Any], torch.Tensor]
_OP = {
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
_ACTIVATION, _GRADIENT = 0, 1


class InstrumentedRuntime(ScheduleRuntime):
    """Executes the lowered schedule of one rank.

    Args:
        stages: The stages that this rank owns.
        schedule: The schedule of the whole pipeline.
        loss: Called with (output, target) of a micro-batch; its mean over the samples.
        group_ranks: Global rank of each pipeline rank.
        recorder: Where events go.
        resident_bytes: Cheap reading of the process's memory, noted with each compute op.
        clock: Times the compute ops; default: the host's.
    """

    def __init__(
        self,
        stages: Sequence[PooledStage],
        schedule: Schedule,
        *,
        loss: LossFunction,
        group_ranks: Sequence[int],
        recorder: Recorder,
        resident_bytes: Callable[[], int],
        clock: DeviceClock | None = None,
    ) -> None:
        super().__init__(list(stages), schedule.micro_batches, loss_fn=loss, scale_grads=False)  # type: ignore[no-untyped-call]
        quiet_runtime_log()
        self._by_index = {stage.stage_index: stage for stage in stages}
        self._schedule, self._loss = schedule, loss
        self._pipeline_rank = self.rank
        self._rank = group_ranks[self.rank]
        self._peer = [group_ranks[r] for r in schedule.stage_to_rank]
        self._recorder = recorder
        self._clock = clock if clock is not None else HostClock(recorder)
        self._resident_bytes = resident_bytes
        self._over = finished_sends(schedule)[self.rank]
        self._receiving: dict[tuple[int, int, int], list[dist.Work]] = {}  # (direction, stage, micro-batch)
        self._sending: dict[Action, tuple[list[dist.Work], list[torch.Tensor]]] = {}
        self._losses: dict[int, torch.Tensor] = {}
        self._marks: dict[tuple[int, int], LayerMarks] = {}
        self._weights: Sequence[float] = ()
        self._step_index = 0
        self._sampled = -1
        self.compute_ns = 0
        self._install(lower(schedule))

    def run_step(
        self, *, step: int, inputs: Sequence[tuple[Any, ...]], targets: Sequence[Any], weights: Sequence[float], sampled: int = -1
    ) -> float:
        """Run one step and leave the gradients of the weighted sum of losses in the parameters.

        Args:
            step: Step index, for seeds and errors.
            inputs: Per micro-batch, the arguments of stage 0.
            targets: Per micro-batch, the target of the loss.
            weights: Per micro-batch, its share of the batch; they sum to 1.
            sampled: Micro-batch whose layers are timed, or -1.

        Returns:
            The weighted loss where this rank owns the last stage, else 0.
        """
        self._step_index, self._weights, self._sampled, self.compute_ns = step, weights, sampled, 0
        self._losses.clear()
        try:
            self._step_microbatches(list(inputs), None, list(targets), return_outputs=False)
            for send in list(self._sending):
                self._finish_send(send)
        finally:
            self._marks.clear()
            self._receiving.clear()
            self._sending.clear()
        return float(sum(loss.item() for loss in self._losses.values()))

    # -- torch's hooks -------------------------------------------------------------------------------------------------

    def _install(self, orders: Sequence[Sequence[Action]]) -> None:
        as_torch: dict[int, list[TorchAction | None]] = {rank: [_to_torch(action) for action in order] for rank, order in enumerate(orders)}
        self._from_torch = {_to_torch(action): action for order in orders for action in order}
        if any(action.kind is not ActionKind.FORWARD for order in self._schedule.orders for action in order):
            self._prepare_schedule_with_comms(as_torch, format="compute_comms")
        else:  # torch's check wants a backward for each forward; an evaluation has none
            self.pipeline_order_with_comms = as_torch  # type: ignore[assignment]
        self.stage_index_to_group_rank = dict(enumerate(self._schedule.stage_to_rank))
        for stage in self._by_index.values():
            stage.stage_index_to_group_rank = self.stage_index_to_group_rank
        perform: dict[ActionKind, Callable[[Action, PipelineContext], None]] = {
            ActionKind.FORWARD: self._forward,
            ActionKind.BACKWARD: self._backward,
            ActionKind.BACKWARD_INPUT: self._backward,
            ActionKind.BACKWARD_WEIGHT: self._backward_weight,
            ActionKind.RECV_ACTIVATION: self._receive_activation,
            ActionKind.RECV_GRADIENT: self._receive_gradient,
            ActionKind.SEND_ACTIVATION: self._send,
            ActionKind.SEND_GRADIENT: self._send,
        }
        for kind, function in perform.items():
            # register_custom_function takes no communication actions, so the table is filled directly.
            self._comp_type_to_function_map[ComputationType(kind.value)] = self._performer(function)

    def _performer(self, function: Callable[[Action, PipelineContext], None]) -> Callable[[TorchAction, PipelineContext], None]:
        def perform(action: TorchAction, context: PipelineContext) -> None:
            function(self._from_torch[action], context)

        return perform

    def _initialize_stages(self, args: Any, kwargs: Any, target: Any = None, loss_kwargs: Any = None) -> None:
        """Nothing to prepare: shapes were inferred before the step, and buffers come from a pool."""

    def _update_losses(self, stages: Any, losses: Any) -> None:
        """Losses are kept here, weighted."""

    # -- actions -------------------------------------------------------------------------------------------------------

    def _forward(self, action: Action, context: PipelineContext) -> None:
        stage, m = self._by_index[action.stage], action.micro_batch
        self._await_input(_ACTIVATION, action)
        marks = LayerMarks(len(stage.module.layers)) if m == self._sampled else None
        stage.module.prepare(step=self._step_index, micro_batch=m, marks=marks)
        with self._timed(action) as timed:
            assert context.arg_mbs is not None
            output = stage.forward_one_chunk(m, context.arg_mbs[m] if stage.is_first else (), None, save_forward_output=False)
            if stage.is_last:
                assert context.target_mbs is not None
                self._losses[m] = self._weigh(self._loss(output, context.target_mbs[m]), m)
        if marks is not None:
            self._marks[action.stage, m] = marks
            for index, (start, end) in enumerate(marks.forward_spans(timed.end_ns)):
                self._record_layer(Op.LAYER_FORWARD, action, stage.module.first + index, start, end)
        if action.stage + 1 in self._by_index:
            self._by_index[action.stage + 1].take_local_activation(m, output)
        if not stage.has_backward:
            stage.release(m)

    def _backward(self, action: Action, _context: PipelineContext) -> None:
        stage, m = self._by_index[action.stage], action.micro_batch
        self._await_input(_GRADIENT, action)
        whole = action.kind is ActionKind.BACKWARD
        with self._timed(action) as timed:
            stage.backward_one_chunk(m, loss=self._losses.get(m), full_backward=whole)
        if stage.is_last:
            self._losses[m] = self._losses[m].detach()
        marks = self._marks.pop((action.stage, m), None)
        spans = marks.backward_spans(timed.start_ns, timed.end_ns) if marks is not None else None
        for index, (start, end) in enumerate(spans or ()):
            self._record_layer(Op.LAYER_BACKWARD, action, stage.module.first + index, start, end)
        if action.stage - 1 in self._by_index:
            self._by_index[action.stage - 1].take_local_gradient(m, stage.bwd_cache.pop(m))
        elif stage.is_first:
            stage.bwd_cache.pop(m, None)
        if whole:
            stage.release(m)

    def _backward_weight(self, action: Action, _context: PipelineContext) -> None:
        stage = self._by_index[action.stage]
        with self._timed(action):
            stage.backward_weight_one_chunk(action.micro_batch)
        stage.release(action.micro_batch)

    def _receive_activation(self, action: Action, _context: PipelineContext) -> None:
        self._post(_ACTIVATION, action, self._by_index[action.stage].buffers_for_activation(action.micro_batch), action.stage - 1)

    def _receive_gradient(self, action: Action, _context: PipelineContext) -> None:
        self._post(_GRADIENT, action, self._by_index[action.stage].buffers_for_gradient(action.micro_batch), action.stage + 1)

    def _post(self, direction: int, action: Action, buffers: list[torch.Tensor], source: int) -> None:
        try:
            works = [_posted(dist.irecv(buffer, src=self._peer[source], group=self._group)) for buffer in buffers]
        except RuntimeError as error:
            raise self._peer_lost(source, action, error) from error
        self._receiving[direction, action.stage, action.micro_batch] = works
        now = time.monotonic_ns()
        self._recorder.record(Op.RECV_POST, action.stage, action.micro_batch, source, now, now)

    def _send(self, action: Action, _context: PipelineContext) -> None:
        stage, m = self._by_index[action.stage], action.micro_batch
        forward = action.kind is ActionKind.SEND_ACTIVATION
        target = action.stage + (1 if forward else -1)
        tensors = stage.activation_to_send(m) if forward else stage.gradient_to_send(m)
        start = time.monotonic_ns()
        try:
            works = [_posted(dist.isend(t, dst=self._peer[target], group=self._group)) for t in tensors]
        except RuntimeError as error:
            raise self._peer_lost(target, action, error) from error
        self._sending[action] = works, tensors  # the tensors must live until the transport is done with them
        size = sum(t.numel() * t.element_size() for t in tensors)
        self._recorder.record(Op.SEND, action.stage, m, target, start, time.monotonic_ns(), size)

    # -- parts of actions ----------------------------------------------------------------------------------------------

    def _await_input(self, direction: int, action: Action) -> None:
        works = self._receiving.pop((direction, action.stage, action.micro_batch), None)
        if works is None:
            return
        source = action.stage + (-1 if direction == _ACTIVATION else 1)
        start = time.monotonic_ns()
        self._recorder.in_flight = (Op.RECV, action.stage, action.micro_batch, start)
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._peer_lost(source, action, error) from error
        end = time.monotonic_ns()
        self._recorder.in_flight = None
        self._recorder.record(Op.RECV, action.stage, action.micro_batch, source, start, end, self._bytes_in(direction, action))
        for send in self._over.get(action, ()):
            self._finish_send(send, known_over=True)

    def _bytes_in(self, direction: int, action: Action) -> int:
        return self._by_index[action.stage].received_bytes(action.micro_batch, gradient=direction == _GRADIENT)

    def _finish_send(self, send: Action, *, known_over: bool = False) -> None:
        works, _tensors = self._sending.pop(send)
        target = send.stage + (1 if send.kind is ActionKind.SEND_ACTIVATION else -1)
        start = time.monotonic_ns()
        try:
            for work in works:
                work.wait()
        except RuntimeError as error:
            raise self._peer_lost(target, send, error) from error
        if not known_over:
            self._recorder.record(Op.SEND_WAIT, send.stage, send.micro_batch, target, start, time.monotonic_ns())

    def _weigh(self, loss: Any, micro_batch: int) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(f"the loss function returned {_describe(loss)}; it must return one number, the mean over the micro-batch")
        return loss * self._weights[micro_batch]

    def _timed(self, action: Action) -> "_Timed":
        return _Timed(self, action)

    def _record_layer(self, op: Op, action: Action, layer: int, start_ns: int, end_ns: int) -> None:
        self._recorder.record(op, action.stage, action.micro_batch, layer, start_ns, end_ns, 0, 0, Flag.SAMPLED)

    def _peer_lost(self, peer_stage: int, action: Action, cause: Exception) -> PeerLostError:
        return PeerLostError(
            f"rank {self._rank} lost the connection to rank {self._peer[peer_stage]} (stage {peer_stage}) at {action.kind.value}, "
            f"stage {action.stage}, micro-batch {action.micro_batch}, step {self._step_index}: {str(cause).strip()}"
        )

    @property
    def _group(self) -> Any:
        return next(iter(self._by_index.values())).group


class _Timed:
    """Times one compute action, records it, and names its place if it fails."""

    __slots__ = ("_action", "_runtime", "end_ns", "start_ns")

    def __init__(self, runtime: InstrumentedRuntime, action: Action) -> None:
        self._runtime, self._action = runtime, action
        self.start_ns = self.end_ns = 0

    def __enter__(self) -> "_Timed":
        action = self._action
        self._runtime._clock.mark()
        self.start_ns = time.monotonic_ns()
        self._runtime._recorder.in_flight = (_OP[action.kind], action.stage, action.micro_batch, self.start_ns)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        runtime, action = self._runtime, self._action
        op = _OP[action.kind]
        if isinstance(error, Exception):
            raise StageError(
                rank=runtime._rank,
                stage=action.stage,
                micro_batch=action.micro_batch,
                step=runtime._step_index,
                doing=_VERB[op],
                cause=_root(error),
            ) from _root(error)
        self.end_ns = time.monotonic_ns()
        runtime.compute_ns += self.end_ns - self.start_ns
        runtime._recorder.in_flight = None
        flags = Flag.SAMPLED if action.micro_batch == runtime._sampled else Flag.NONE
        runtime._clock.record(op, action.stage, action.micro_batch, -1, self.start_ns, self.end_ns, 0, runtime._resident_bytes(), flags)


def _root(error: BaseException) -> BaseException:
    """torch wraps a layer's exception with a print of its inputs; the layer's own is what a person needs."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error


def _posted(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the pipeline's group"
    return work


def _to_torch(action: Action) -> TorchAction:
    return TorchAction(action.stage, ComputationType(action.kind.value), action.micro_batch)


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
