"""torch's schedule runtime with our actions: receive, compute, send, each of them timed.

What runs between two layers runs with cold caches: the layers have just swept them, and a line of Python costs many times what
a loop over it would suggest. So what other ranks wait for comes first, and an output is sent before anything is
written down about the op that made it; what can be looked up before the first step is; what is noted is written down in the
next bubble; and torch's own walk through the list, which wraps each action in a profiler range, is taken only while a
profiler listens.
"""

from collections.abc import Callable, Sequence
from typing import Any

from pptoolkit.engine.device_clock import DeviceClock, HostClock
from pptoolkit.engine.layer_marks import LayerMarks, Span
from pptoolkit.engine.messages import Message
from pptoolkit.engine.planned import OPS, ComputeTimer, Planned
from pptoolkit.engine.randomness import StepSeeds
from pptoolkit.engine.routes import Routes, SharedRoutes
from pptoolkit.engine.stage import PooledStage
from pptoolkit.engine.step_losses import LossFunction, PassLoss, StepLosses
from pptoolkit.engine.stream_messages import make_messages
from pptoolkit.engine.torch_private import (
    ComputationType,
    PipelineContext,
    ScheduleRuntime,
    TorchAction,
    profiler_listens,
    quiet_runtime_log,
)
from pptoolkit.schedule import Action, ActionKind, Schedule
from pptoolkit.schedule.lower import input_of, lower, output_of
from pptoolkit.telemetry.events import Flag, Op
from pptoolkit.telemetry.recorder import LONG_WAIT_NS, Recorder

_SAMPLED, _FORWARD = int(Flag.SAMPLED), int(Op.FORWARD)  # as numbers: combining enum members costs more than recording an event
_SENDS = (ActionKind.SEND_ACTIVATION, ActionKind.SEND_GRADIENT)
BeforeLast = Callable[[float, float], None]
Perform = Callable[[PipelineContext], None]
_WEIGHED_NS = 20_000_000
"""Ops shorter than this are not all worth a reading of the memory: between layers one takes up to 20 microseconds."""

_OLDEST_NOTE_NS = 500_000_000
"""No op waits longer than about this to be written down, however long the step is."""


class InstrumentedRuntime(ScheduleRuntime):
    """Executes the lowered schedule of one rank.

    Args:
        stages: The stages that this rank owns.
        schedule: The schedule of the whole pipeline.
        loss: Called with (output, target) of a micro-batch; its mean over the samples.
        group_ranks: Global rank of each pipeline rank.
        recorder: Where events go.
        resident_bytes: Reading of the process's memory, noted with each long compute op; of short ones with one forward a step,
            whose goes round, and with the last one before each bubble.
        clock: Times the compute ops; default: the host's.
        routes: How the other ranks are reached; default: over the stages' own group.
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
        routes: Routes | None = None,
    ) -> None:
        super().__init__(list(stages), schedule.micro_batches, loss_fn=loss, scale_grads=False)  # type: ignore[no-untyped-call]
        quiet_runtime_log()
        self._by_index = {stage.stage_index: stage for stage in stages}
        self._schedule = schedule
        self._rank = group_ranks[self.rank]
        self._recorder = recorder
        self._clock = clock if clock is not None else HostClock(recorder)
        self._resident_bytes = resident_bytes
        self._messages = make_messages(
            self._by_index,
            schedule,
            rank=self.rank,
            group_ranks=group_ranks,
            recorder=recorder,
            routes=routes or SharedRoutes(stages[0].group),
            clock=self._clock,
        )
        self._losses = StepLosses(loss)
        self._marks: dict[tuple[int, int], LayerMarks] = {}
        self._seeds = StepSeeds({index: stage.module.seeder for index, stage in self._by_index.items()}, schedule.micro_batches)
        self._step_index = 0
        self._sampled = -1
        self._weighed = 0
        self._before_last: BeforeLast | None = None
        self._last_action_ns = 0
        self._notes: list[tuple[Planned, int, int, int]] = []  # begin, end and resident bytes of ops that are not written down yet
        self._layer_notes: list[tuple[Op, Planned, LayerMarks, Span]] = []  # of ops in the notes
        self._at_once = not isinstance(self._clock, HostClock)  # events on a stream are told apart by their order
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
        before_last: BeforeLast | None = None,
    ) -> PassLoss:
        """Run one step and leave the gradients of the weighted sum of losses in the parameters; on a GPU, only issue it.

        Args:
            step: Step index, for seeds and errors.
            inputs: Per micro-batch, the arguments of stage 0.
            targets: Per micro-batch, the target of the loss.
            weights: Per micro-batch, its share of the batch; they sum to 1.
            named: Per micro-batch, what layers on any stage take from the batch by name.
            sampled: Micro-batch whose layers are timed, or -1.
            before_last: Called before this rank's last action with its share of the loss, which is complete by then, and the
                seconds that it will have computed, the last action counted as it took in the step before: what the ranks have
                to tell each other then costs no time after it. Not called where that action waits for no other rank: it would
                be held up, and such a rank is done before the others.

        Returns:
            The weighted loss where this rank owns the last stage, else one of 0; on a GPU, reading it waits for the step.
        """
        self._step_index, self._sampled, self.compute_ns = step, sampled, 0
        self._weighed = step % self._schedule.micro_batches
        self._messages.step = step
        self._losses.begin(weights)
        self._before_last = before_last
        self._seeds.begin_step(step)
        try:
            with self._seeds.generators_untouched():
                self._step_microbatches(list(inputs), list(named) or None, list(targets), return_outputs=False)
            self._messages.finish()
        finally:
            self._write_down()
            self._marks.clear()
            self._messages.forget()
        return self._losses.so_far()

    # -- torch's hooks -------------------------------------------------------------------------------------------------

    def _install(self, orders: Sequence[Sequence[Action]]) -> None:
        as_torch: dict[int, list[TorchAction | None]] = {rank: [_to_torch(action) for action in order] for rank, order in enumerate(orders)}
        if any(action.kind is not ActionKind.FORWARD for order in self._schedule.orders for action in order):
            self._prepare_schedule_with_comms(as_torch, format="compute_comms")
        else:  # torch's check wants a backward for each forward; an evaluation has none
            self.pipeline_order_with_comms = as_torch  # type: ignore[assignment]
        self.stage_index_to_group_rank = dict(enumerate(self._schedule.stage_to_rank))
        for stage in self._by_index.values():
            stage.stage_index_to_group_rank = self.stage_index_to_group_rank
        # A send is part of the compute action before it.
        performed = {action: self._plan(action) for action in orders[self.rank] if action.kind not in _SENDS}
        last = next(action for action in reversed(performed) if action.kind in OPS)
        if last.kind is not ActionKind.FORWARD and input_of(last, self._schedule) is not None:
            performed[last] = self._announced(performed[last])
        self._program = list(performed.values())
        self._perform = {_to_torch(action): perform for action, perform in performed.items()}
        for kind in ActionKind:
            # register_custom_function takes no communication actions, so the table is filled directly.
            self._comp_type_to_function_map[ComputationType(kind.value)] = self._perform_action

    def _plan(self, action: Action) -> Perform:
        """Look up once what would be looked up in every step."""
        if action.kind not in OPS:
            message = self._messages.of(action)
            assert message is not None
            return lambda _: self._messages.post(message)
        run = {ActionKind.FORWARD: self._forward, ActionKind.BACKWARD_WEIGHT: self._backward_weight}.get(action.kind, self._backward)
        planned = Planned(
            action,
            stage=self._by_index[action.stage],
            input=self._messages.of(input_of(action, self._schedule)),
            output=self._messages.of(output_of(action, self._schedule)),
            finished=self._messages.finished_at(action),
            before=self._by_index.get(action.stage - 1),
            after=self._by_index.get(action.stage + 1),
        )
        return lambda context: run(planned, context)

    def _announced(self, perform: Perform) -> Perform:
        def announce_and_perform(context: PipelineContext) -> None:
            before_ns = self.compute_ns
            if self._before_last is not None:
                self._before_last(self._losses.so_far().read(), (before_ns + self._last_action_ns) / 1e9)
            perform(context)
            self._last_action_ns = self.compute_ns - before_ns

        return announce_and_perform

    def _perform_action(self, action: TorchAction, context: PipelineContext) -> None:
        perform = self._perform.get(action)
        if perform is not None:
            perform(context)

    def _step_microbatches(
        self,
        arg_mbs: list[Any] | None = None,
        kwarg_mbs: list[Any] | None = None,
        target_mbs: list[Any] | None = None,
        losses: list[Any] | None = None,
        return_outputs: bool = True,
        loss_kwargs: dict[str, Any] | None = None,
    ) -> None:
        if profiler_listens():
            super()._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs)
            return
        context = PipelineContext(self, arg_mbs, kwarg_mbs, target_mbs, losses)
        for perform in self._program:
            perform(context)

    def _initialize_stages(self, args: Any, kwargs: Any, target: Any = None, loss_kwargs: Any = None) -> None:
        """Nothing to prepare: shapes were inferred before the step, and buffers come from a pool."""

    def _update_losses(self, stages: Any, losses: Any) -> None:
        """Losses are kept here."""

    # -- actions -------------------------------------------------------------------------------------------------------

    def _forward(self, planned: Planned, context: PipelineContext) -> None:
        stage, m = planned.stage, planned.micro_batch
        assert context.arg_mbs is not None
        assert context.kwarg_mbs is not None
        marks = self._clock.layer_marks(planned.layers) if m == self._sampled else None
        stage.module.prepare(self._seeds.of(planned.index, m), marks=marks)
        named = {name: context.kwarg_mbs[m][name] for name in stage.module.batch_inputs}
        self._await_input(planned.input)
        with self._timed(planned) as timed:
            output = stage.forward_one_chunk(m, context.arg_mbs[m], named, save_forward_output=False)
            if stage.is_last:
                assert context.target_mbs is not None
                self._losses.take(m, output, context.target_mbs[m])
        if planned.after is not None:
            planned.after.take_local_activation(m, stage.activations(m))
        self._end(planned, timed)
        if marks is not None:
            self._marks[planned.index, m] = marks
            self._record_layers(Op.LAYER_FORWARD, planned, marks, timed)
        if stage.is_last and not stage.has_backward:
            del stage.fwd_cache[m]
            stage.release(m)

    def _backward(self, planned: Planned, _context: PipelineContext) -> None:
        stage, m = planned.stage, planned.micro_batch
        whole = planned.action.kind is ActionKind.BACKWARD
        loss = self._losses.kept.get(m)
        gradient = self._losses.gradient(loss, m) if loss is not None and stage.is_last else None
        self._await_input(planned.input)
        with self._timed(planned) as timed:
            stage.backward_one_chunk(m, loss=loss, full_backward=whole, loss_gradient=gradient)
        if planned.before is not None:
            planned.before.take_local_gradient(m, stage.gradients(m))
        self._end(planned, timed)
        if loss is not None and stage.is_last and not stage.backward_waits(m):
            self._losses.let_go(m)
        if not stage.backward_waits(m):
            self._record_layers_backward(planned, timed)
        if stage.is_first:
            stage.bwd_cache.pop(m, None)
        if whole:
            stage.release(m)

    def _backward_weight(self, planned: Planned, _context: PipelineContext) -> None:
        stage, m = planned.stage, planned.micro_batch
        everything = stage.backward_waits(m)
        with self._timed(planned) as timed:
            stage.backward_weight_one_chunk(m)
        self._end(planned, timed)
        if everything:
            self._record_layers_backward(planned, timed)
            if stage.is_last:
                self._losses.let_go(m)
        stage.release(m)

    # -- parts of actions ----------------------------------------------------------------------------------------------

    def _await_input(self, message: Message | None) -> None:
        if message is None:
            return
        self._seeds.draw_ahead()  # this rank is about to be idle, in the step's first wait at least
        if message.last_wait_ns > LONG_WAIT_NS:
            if self._notes:
                self._notes[-1] = (*self._notes[-1][:3], self._resident_bytes())
            self._write_down()
        self._messages.wait(message)

    def _timed(self, planned: Planned) -> ComputeTimer:
        return ComputeTimer(planned, self._clock, self._recorder, rank=self._rank, step=self._step_index)

    def _end(self, planned: Planned, timed: ComputeTimer) -> None:
        """Send what the next rank waits for; then note what happened, and let go of what is over."""
        if planned.output is not None:
            self._messages.send(planned.output)
        took_ns = timed.end_ns - timed.start_ns
        self.compute_ns += took_ns
        goes_round = planned.micro_batch == self._weighed and planned.op == _FORWARD
        weighed = took_ns > _WEIGHED_NS or goes_round or self._at_once
        self._notes.append((planned, timed.start_ns, timed.end_ns, self._resident_bytes() if weighed else 0))
        if self._at_once or timed.end_ns - self._notes[0][1] > _OLDEST_NOTE_NS:
            self._write_down()
        if planned.finished:
            came = planned.input is not None and planned.input.waited is not None
            for message in planned.finished:
                self._messages.conclude(message, known_over=came)  # only what really came proves that a send is over

    def _write_down(self) -> None:
        for planned, start_ns, end_ns, resident in self._notes:
            m = planned.micro_batch
            if planned.input is not None:
                planned.input.record_arrival(self._recorder)
            flags = _SAMPLED if m == self._sampled else 0
            self._clock.record(planned.op, planned.index, m, -1, start_ns, end_ns, 0, resident, flags)
            if planned.output is not None:
                planned.output.record_departure(self._recorder)
        self._notes.clear()
        for op, planned, marks, span in self._layer_notes:
            self._clock.record_layers(op, planned.index, planned.micro_batch, marks, span, first=planned.stage.module.first)
        self._layer_notes.clear()

    def _record_layers_backward(self, planned: Planned, timed: ComputeTimer) -> None:
        marks = self._marks.pop((planned.index, planned.micro_batch), None)
        if marks is not None:
            self._record_layers(Op.LAYER_BACKWARD, planned, marks, timed)

    def _record_layers(self, op: Op, planned: Planned, marks: LayerMarks, timed: ComputeTimer) -> None:
        self._layer_notes.append((op, planned, marks, (timed.start_ns, timed.end_ns)))
        if self._at_once:
            self._write_down()


def _to_torch(action: Action) -> TorchAction:
    return TorchAction(action.stage, ComputationType(action.kind.value), action.micro_batch)
