"""torch's schedule runtime with our actions: it walks the list, we receive, compute, send, and time each of them."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from pptoolkit.engine.device_clock import DeviceClock, HostClock
from pptoolkit.engine.messages import Messages
from pptoolkit.engine.stage import PooledStage
from pptoolkit.engine.stage_module import LayerMarks
from pptoolkit.engine.torch_private import ComputationType, PipelineContext, ScheduleRuntime, TorchAction, quiet_runtime_log
from pptoolkit.errors import StageError
from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.lower import lower
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.recorder import Recorder

_SAMPLED = int(Flag.SAMPLED)  # as a number: combining enum members costs more than recording an event
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
        self._rank = group_ranks[self.rank]
        self._recorder = recorder
        self._clock = clock if clock is not None else HostClock(recorder)
        self._resident_bytes = resident_bytes
        self._messages = Messages(self._by_index, schedule, rank=self.rank, group_ranks=group_ranks, recorder=recorder)
        self._losses: dict[int, torch.Tensor] = {}
        self._marks: dict[tuple[int, int], LayerMarks] = {}
        self._weights: Sequence[float] = ()
        self._step_index = 0
        self._sampled = -1
        self.compute_ns = 0
        self._install(lower(schedule))

    def run_step(
        self,
        *,
        step: int,
        inputs: Sequence[tuple[Any, ...]],
        targets: Sequence[Any],
        weights: Sequence[float],
        named: Sequence[dict[str, Any]] = (),
        sampled: int = -1,
    ) -> float:
        """Run one step and leave the gradients of the weighted sum of losses in the parameters.

        Args:
            step: Step index, for seeds and errors.
            inputs: Per micro-batch, the arguments of stage 0.
            targets: Per micro-batch, the target of the loss.
            weights: Per micro-batch, its share of the batch; they sum to 1.
            named: Per micro-batch, what layers on any stage take from the batch by name.
            sampled: Micro-batch whose layers are timed, or -1.

        Returns:
            The weighted loss where this rank owns the last stage, else 0.
        """
        self._step_index, self._weights, self._sampled, self.compute_ns = step, weights, sampled, 0
        self._messages.step = step
        self._losses.clear()
        try:
            self._step_microbatches(list(inputs), list(named) or None, list(targets), return_outputs=False)
            self._messages.finish()
        finally:
            self._marks.clear()
            self._messages.forget()
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
            ActionKind.RECV_ACTIVATION: lambda action, _: self._messages.post_receive(action),
            ActionKind.RECV_GRADIENT: lambda action, _: self._messages.post_receive(action),
            ActionKind.SEND_ACTIVATION: lambda action, _: self._messages.send(action),
            ActionKind.SEND_GRADIENT: lambda action, _: self._messages.send(action),
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
        self._messages.await_input(action)
        marks = LayerMarks(len(stage.module.layers)) if m == self._sampled else None
        stage.module.prepare(step=self._step_index, micro_batch=m, marks=marks)
        assert context.arg_mbs is not None
        assert context.kwarg_mbs is not None
        named = {name: context.kwarg_mbs[m][name] for name in stage.module.batch_inputs}
        with self._timed(action) as timed:
            output = stage.forward_one_chunk(m, context.arg_mbs[m], named, save_forward_output=False)
            if stage.is_last:
                assert context.target_mbs is not None
                self._losses[m] = self._weigh(self._loss(output, context.target_mbs[m]), m)
        if marks is not None:
            self._marks[action.stage, m] = marks
            for index, (start, end) in enumerate(marks.forward_spans(timed.end_ns)):
                self._record_layer(Op.LAYER_FORWARD, action, stage.module.first + index, start, end)
        if action.stage + 1 in self._by_index:
            self._by_index[action.stage + 1].take_local_activation(m, stage.activations(m))
        if stage.is_last and not stage.has_backward:
            del stage.fwd_cache[m]
            stage.release(m)

    def _backward(self, action: Action, _context: PipelineContext) -> None:
        stage, m = self._by_index[action.stage], action.micro_batch
        self._messages.await_input(action)
        whole = action.kind is ActionKind.BACKWARD
        with self._timed(action) as timed:
            stage.backward_one_chunk(m, loss=self._losses.get(m), full_backward=whole)
        if stage.is_last and not stage.backward_waits(m):
            self._losses[m] = self._losses[m].detach()
        if not stage.backward_waits(m):
            self._record_layers_backward(action, timed)
        if action.stage - 1 in self._by_index:
            self._by_index[action.stage - 1].take_local_gradient(m, stage.gradients(m))
        elif stage.is_first:
            stage.bwd_cache.pop(m, None)
        if whole:
            stage.release(m)

    def _backward_weight(self, action: Action, _context: PipelineContext) -> None:
        stage, m = self._by_index[action.stage], action.micro_batch
        everything = stage.backward_waits(m)
        with self._timed(action) as timed:
            stage.backward_weight_one_chunk(m)
        if everything:
            self._record_layers_backward(action, timed)
            if stage.is_last:
                self._losses[m] = self._losses[m].detach()
        stage.release(m)

    # -- parts of actions ----------------------------------------------------------------------------------------------

    def _record_layers_backward(self, action: Action, timed: "_Timed") -> None:
        marks = self._marks.pop((action.stage, action.micro_batch), None)
        spans = marks.backward_spans(timed.start_ns, timed.end_ns) if marks is not None else None
        for index, (start, end) in enumerate(spans or ()):
            self._record_layer(Op.LAYER_BACKWARD, action, self._by_index[action.stage].module.first + index, start, end)

    def _weigh(self, loss: Any, micro_batch: int) -> torch.Tensor:
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise TypeError(f"the loss function returned {_describe(loss)}; it must return one number, the mean over the micro-batch")
        return loss * self._weights[micro_batch]

    def _timed(self, action: Action) -> "_Timed":
        return _Timed(self, action)

    def _record_layer(self, op: Op, action: Action, layer: int, start_ns: int, end_ns: int) -> None:
        self._recorder.record(op, action.stage, action.micro_batch, layer, start_ns, end_ns, 0, 0, _SAMPLED)


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
        flags = _SAMPLED if action.micro_batch == runtime._sampled else 0
        runtime._clock.record(op, action.stage, action.micro_batch, -1, self.start_ns, self.end_ns, 0, runtime._resident_bytes(), flags)


def _root(error: BaseException) -> BaseException:
    """torch wraps a layer's exception with a print of its inputs; the layer's own is what a person needs."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ is not None else error


def _to_torch(action: Action) -> TorchAction:
    return TorchAction(action.stage, ComputationType(action.kind.value), action.micro_batch)


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
