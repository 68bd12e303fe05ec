"""The pipeline on this rank: its stages built, its shapes known, one call a step."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.device_clock import make_device_clock
from pptoolkit.engine.layer_facts import LayerFact, layer_facts, warn_of_batch_norm
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.randomness import LayerSeeder
from pptoolkit.engine.routes import make_routes
from pptoolkit.engine.runtime import BeforeLast, InstrumentedRuntime
from pptoolkit.engine.shape_book import ShapeBook
from pptoolkit.engine.stage import PooledStage
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.engine.step_losses import LossFunction, PassLoss
from pptoolkit.engine.ties import TiedParameters
from pptoolkit.engine.wiring import Wiring
from pptoolkit.errors import PlanError
from pptoolkit.plan import Plan
from pptoolkit.schedule import FORWARD_ONLY, Schedule, build_schedule, forward_schedule, validate
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.recorder import Recorder

_HOST = torch.device("cpu")


class Pipeline:
    """Builds this rank's stages of a layer list and runs steps through all of them.

    Args:
        layers: The whole model; only this rank's layers are built.
        plan: Cuts, schedule and micro-batches, already checked against the layers.
        loss: (output, target) of a micro-batch -> its mean loss.
        seed: Decides weights and dropout.
        recorder: Where events go.
        device: Where this rank's stages live.
        resident_bytes: Cheap reading of the process's memory.
        mesh: Which replica this rank works for; None: all ranks are one pipeline.

    Raises:
        PlanError: If the plan does not fit the number of ranks, or its schedule trains nothing.
        ScheduleError: If the schedule cannot run.
        ConfigError: If names that the layers declare lead nowhere, or tied parameters do not fit each other.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        plan: Plan,
        *,
        loss: LossFunction,
        seed: int,
        recorder: Recorder,
        device: torch.device,
        resident_bytes: Callable[[], int],
        mesh: Mesh | None = None,
    ) -> None:
        self.mesh = mesh or Mesh.of(1)
        self.rank, self.ranks = self.mesh.pipeline_rank, self.mesh.pipeline_ranks
        self.device = device
        self.schedule = build_schedule(plan.schedule, ranks=self.ranks, stages=plan.stages, micro_batches=plan.micro_batches)
        if self.schedule.name == FORWARD_ONLY:
            raise PlanError(f"schedule {FORWARD_ONLY!r} has no backward and trains nothing; choose another, e.g. '1f1b'")
        validate(self.schedule)
        self._wiring = Wiring.of(layers)
        self._parts = plan.stage_layers(len(layers))
        built = {i: layers[i].build(seed).to(device) for stage in self.schedule.stages_of(self.rank) for i in self._parts[stage]}
        layer_to_rank = [self.schedule.stage_to_rank[stage] for stage, part in enumerate(self._parts) for _ in part]
        self._ties = TiedParameters(
            self._wiring, built, layer_to_rank, rank=self.rank, group_ranks=self.mesh.ranks, group=self.mesh.pipeline_group
        )
        self.stages = {
            index: PooledStage(
                self._stage_module(index, built, seed),
                stage=index,
                stages=plan.stages,
                device=device,
                group=self.mesh.pipeline_group,
            )
            for index in self.schedule.stages_of(self.rank)
        }
        self._loss, self._recorder, self._resident_bytes = loss, recorder, resident_bytes
        self.clock = make_device_clock(device, recorder)
        self._routes = make_routes(self.mesh, self.schedule.stage_to_rank, device)
        # A batch is the same on every rank, and goes to the devices that read it.
        reads = self.owns_first or any(stage.module.batch_inputs for stage in self.stages.values())
        self._input_device = device if reads else _HOST
        self._target_device = device if self.owns_last else _HOST
        self._train = self._runtime(self.schedule)
        self._forward_only: dict[int, InstrumentedRuntime] = {}  # by number of micro-batches
        modules = {index: stage.module for index, stage in self.stages.items()}
        self._shapes = ShapeBook(
            modules,
            self.schedule.stage_to_rank,
            group_ranks=self.mesh.ranks,
            rank=self.rank,
            device=device,
            group=self.mesh.pipeline_group,
        )
        warn_of_batch_norm(modules.values(), plan.micro_batches, stacklevel=2)

    @property
    def owns_first(self) -> bool:
        return 0 in self.stages

    @property
    def owns_last(self) -> bool:
        return self.schedule.stages - 1 in self.stages

    @property
    def last_rank(self) -> int:
        return self.schedule.stage_to_rank[-1]

    @property
    def compute_s(self) -> float:
        """Time that this rank spent computing in the last pass, as the host saw it: on a GPU, only what issuing it took."""
        return self._train.compute_ns / 1e9

    def parameters(self) -> list[nn.Parameter]:
        """Return this rank's parameters, each once: those that the optimizer updates here."""
        return list(self.named_parameters().values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters under names that do not depend on the cut; a tied one goes by its owner's name.

        A copy of a parameter that another rank owns is among them: load it, and its optimizer state, under that name.
        """
        return {name: t for name, t in self._named_tensors() if isinstance(t, nn.Parameter)}

    def named_layers(self) -> dict[str, nn.Module]:
        """Return this rank's layers by name, in model order."""
        modules = [self.stages[index].module for index in sorted(self.stages)]
        return {name: layer for module in modules for name, layer in zip(module.names, module.layers, strict=True)}

    def norm_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that this rank adds to the global gradient norm: all but copies of what another rank owns."""
        copies = {id(p) for p in self._ties.copies}
        return [p for p in self.parameters() if id(p) not in copies]

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return what this rank saves: its parameters and buffers under names that do not depend on the cut, a tied one once."""
        copies = {id(p) for p in self._ties.copies}
        return {name: t for name, t in self._named_tensors() if id(t) not in copies}

    def owner_name(self, name: str) -> str:
        """Return the name under which a tensor is kept: a tied parameter goes by its owner's."""
        return self._ties.owner_names.get(name, name)

    @property
    def tied_names(self) -> frozenset[str]:
        """Names, their owners', of the tied parameters that live on this rank."""
        return frozenset(self._ties.owner_names.values())

    def refresh_ties(self) -> None:
        """Give copies of tied parameters their owners' values, after parameters were changed other than by training.

        Call it on every rank.
        """
        self._ties.refresh()

    def reduce_ties(self) -> None:
        """Sum the gradients of tied parameters over the ranks; once before each optimizer step, on every rank."""
        if self._wiring.ties:
            with self.clock.span(Op.REDUCE) as span:
                span.bytes = self._ties.reduce()

    def forget_shapes(self) -> None:
        """Infer all shapes anew, after parameters were frozen or unfrozen. Call it on every rank."""
        self._shapes.forget()

    def run_pass(
        self,
        inputs: Any,
        targets: Any,
        *,
        step: int,
        sampled: int = -1,
        weights: Sequence[float] | None = None,
        first_micro_batch: int = 0,
        accumulates: bool = False,
        before_last: BeforeLast | None = None,
    ) -> PassLoss:
        """Run forward and backward of one batch; gradients of its weighted loss are added to the parameters'.

        Args:
            inputs: The batch's inputs, samples along the first dimension; the same on every rank of the replica. A tuple is the
                first layer's arguments; names that layers take are the keys of a dict, which may be the last entry of the tuple.
            targets: The batch's targets, likewise. Both may be :class:`~pptoolkit.engine.micro_batch.MicroBatches`.
            step: Step index.
            sampled: Micro-batch whose layers are timed, or -1.
            weights: Factor of each micro-batch's loss; None: its share of the samples, which gives the batch's mean loss.
            first_micro_batch: Micro-batches of this step that ran before, under gradient accumulation.
            accumulates: Another batch follows before the optimizer: gradients of tied parameters are not summed yet.
            before_last: As in :meth:`InstrumentedRuntime.run_step`.

        Returns:
            The weighted losses on the rank of the last stage, else none.
        """
        count = self.schedule.micro_batches
        self._recorder.first_micro_batch = first_micro_batch
        for stage in self.stages.values():
            stage.module.seeder.first_micro_batch = first_micro_batch
        try:
            share = self._run(self._train, count, inputs, targets, step=step, sampled=sampled, weights=weights, before_last=before_last)
        finally:
            self._recorder.first_micro_batch = 0
        if not accumulates:
            self.reduce_ties()
        return share

    def evaluate(self, inputs: Any, targets: Any, *, step: int, weights: Sequence[float] | None = None) -> float:
        """Run forward only, in evaluation mode, and leave gradients, buffers and random state as they were.

        A batch with fewer samples than the schedule has micro-batches is cut into micro-batches of one sample. ``weights``: one each.
        """
        count = min(self.schedule.micro_batches, mb.batch_size(inputs))
        if count not in self._forward_only:
            self._forward_only[count] = self._runtime(forward_schedule(self.schedule.stage_to_rank, count))
        modules = [stage.module for stage in self.stages.values()]
        training = [(layer, layer.training) for module in modules for layer in module.modules()]
        for module in modules:
            module.eval()
        try:
            with torch.no_grad():
                share = self._run(self._forward_only[count], count, inputs, targets, step=step, sampled=-1, weights=weights, train=False)
                self.clock.resolve()
                return share.read()
        finally:
            for layer, was_training in training:
                layer.training = was_training

    def layer_facts(self) -> list[LayerFact]:
        """Return the facts of this rank's layers; the bytes are 0 until a step has run."""
        return layer_facts({index: stage.module for index, stage in self.stages.items()}, self._shapes.first)

    def _runtime(self, schedule: Schedule) -> InstrumentedRuntime:
        return InstrumentedRuntime(
            list(self.stages.values()),
            schedule,
            loss=self._loss,
            group_ranks=self.mesh.ranks,
            recorder=self._recorder,
            resident_bytes=self._resident_bytes,
            clock=self.clock,
            routes=self._routes,
        )

    def _run(
        self,
        runtime: InstrumentedRuntime,
        count: int,
        inputs: Any,
        targets: Any,
        *,
        step: int,
        sampled: int,
        weights: Sequence[float] | None,
        train: bool = True,
        before_last: BeforeLast | None = None,
    ) -> PassLoss:
        parts = mb.split(mb.to_device(inputs, self._input_device), count)
        target_parts = mb.split(mb.to_device(targets, self._target_device), count)
        arguments, named = zip(*(self._wiring.split_inputs(part) for part in parts), strict=True)
        self._shapes.check_frozen()
        shapes = [self._shapes.look_up(args, names, train=train) for args, names in zip(arguments, named, strict=True)]
        for index, stage in self.stages.items():
            stage.begin_step([known[index] for known in shapes], train=train)
        try:
            return runtime.run_step(
                step=step,
                inputs=arguments,
                named=named,
                targets=target_parts,
                weights=mb.weights(parts) if weights is None else weights,
                sampled=sampled,
                before_last=before_last,
            )
        finally:
            for stage in self.stages.values():
                stage.end_step()

    def _stage_module(self, index: int, built: dict[int, nn.Module], seed: int) -> StageModule:
        part = self._parts[index]
        seeder = LayerSeeder(seed, [self._wiring.names[i] for i in part], replica=self.mesh.replica, device=self.device)
        return StageModule([built[i] for i in part], part, wiring=self._wiring, seeder=seeder)

    def _named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for stage in self.stages.values():
            for name, tensor in stage.module.global_state().items():
                yield self.owner_name(name), tensor
