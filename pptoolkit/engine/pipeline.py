"""The pipeline on this rank: its stages built, its shapes known, one call a step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.randomness import LayerSeeder
from pptoolkit.engine.runtime import InstrumentedRuntime, LossFunction
from pptoolkit.engine.shapes import Specs, StageShapes, TensorSpec, infer_stage, receive_specs, send_specs
from pptoolkit.engine.stage import PooledStage
from pptoolkit.engine.stage_module import StageModule
from pptoolkit.plan import Plan
from pptoolkit.schedule import Schedule, build_schedule, forward_schedule
from pptoolkit.telemetry.recorder import Recorder


@dataclass(frozen=True, slots=True)
class LayerFact:
    """What is known of a layer before it runs, in bytes per micro-batch of the first shape seen."""

    index: int
    name: str
    parameters: int
    parameter_bytes: int
    activation_bytes: int  # kept for the backward pass
    boundary_bytes: int  # handed to the next layer


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
        self._parts = plan.stage_layers(len(layers))
        self.stages = {
            index: PooledStage(
                _build_module(layers, self._parts[index], seed=seed, replica=self.mesh.replica, device=device),
                stage=index,
                stages=plan.stages,
                device=device,
                group=self.mesh.pipeline_group,
            )
            for index in self.schedule.stages_of(self.rank)
        }
        self._loss, self._recorder, self._resident_bytes = loss, recorder, resident_bytes
        self._train = self._runtime(self.schedule)
        self._forward_only: dict[int, InstrumentedRuntime] = {}  # by number of micro-batches
        self._shapes: dict[tuple[bool, Specs], dict[int, StageShapes]] = {}  # by (training, inputs of stage 0)

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
        """Time that this rank spent computing in the last training step."""
        return self._train.compute_ns / 1e9

    def parameters(self) -> list[nn.Parameter]:
        return list(self.named_parameters().values())

    def named_parameters(self) -> dict[str, nn.Parameter]:
        """Return this rank's parameters, each once, under names that do not depend on the cut."""
        found = {f"{layer}.{name}": p for layer, module in self.named_layers().items() for name, p in module.named_parameters()}
        first_name = {p: name for name, p in reversed(found.items())}
        return {name: p for name, p in found.items() if first_name[p] == name}

    def named_layers(self) -> dict[str, nn.Module]:
        """Return this rank's layers by name, in model order."""
        modules = [self.stages[index].module for index in sorted(self.stages)]
        return {name: layer for module in modules for name, layer in zip(module.names, module.layers, strict=True)}

    def named_state(self) -> dict[str, torch.Tensor]:
        """Return this rank's parameters and buffers under names that do not depend on the cut."""
        return {name: t for stage in self.stages.values() for name, t in stage.module.global_state().items()}

    def train_step(
        self, inputs: Any, targets: Any, *, step: int, sampled: int = -1, weights: Sequence[float] | None = None, first_micro_batch: int = 0
    ) -> float:
        """Run forward and backward of one batch; gradients of its weighted loss are added to the parameters'.

        Args:
            inputs: The batch's inputs, samples along the first dimension; the same on every rank of the replica.
            targets: The batch's targets, likewise.
            step: Step index.
            sampled: Micro-batch whose layers are timed, or -1.
            weights: Factor of each micro-batch's loss; None: its share of the samples, which gives the batch's mean loss.
            first_micro_batch: Micro-batches of this step that ran before, under gradient accumulation.

        Returns:
            The sum of the weighted losses on the rank of the last stage, else 0.
        """
        count = self.schedule.micro_batches
        self._recorder.first_micro_batch = first_micro_batch
        for stage in self.stages.values():
            stage.module.seeder.first_micro_batch = first_micro_batch
        try:
            return self._run(self._train, count, inputs, targets, step=step, sampled=sampled, weights=weights)
        finally:
            self._recorder.first_micro_batch = 0

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
                return self._run(self._forward_only[count], count, inputs, targets, step=step, sampled=-1, weights=weights, train=False)
        finally:
            for layer, was_training in training:
                layer.training = was_training

    def layer_facts(self) -> list[LayerFact]:
        """Return the facts of this rank's layers; the bytes are 0 until a step has run."""
        shapes = next((known for (train, _), known in self._shapes.items() if train), {})
        facts = []
        for stage_index, stage in self.stages.items():
            known = shapes.get(stage_index)
            for offset, (name, module) in enumerate(zip(stage.module.names, stage.module.layers, strict=True)):
                parameters = list(module.parameters())
                facts.append(
                    LayerFact(
                        stage.module.first + offset,
                        name,
                        sum(p.numel() for p in parameters),
                        sum(p.numel() * p.element_size() for p in parameters),
                        known.layer_saved_bytes[offset] if known else 0,
                        known.layer_output_bytes[offset] if known else 0,
                    )
                )
        return facts

    def _runtime(self, schedule: Schedule) -> InstrumentedRuntime:
        return InstrumentedRuntime(
            list(self.stages.values()),
            schedule,
            loss=self._loss,
            group_ranks=self.mesh.ranks,
            recorder=self._recorder,
            resident_bytes=self._resident_bytes,
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
    ) -> float:
        parts = mb.split(mb.to_device(inputs, self.device), count)
        arguments = [mb.as_arguments(part) for part in parts]
        shapes = [self._infer(args, train=train) for args in arguments]
        for index, stage in self.stages.items():
            stage.begin_step([known[index] for known in shapes], train=train)
        try:
            return runtime.run_step(
                step=step,
                inputs=arguments,
                targets=mb.split(mb.to_device(targets, self.device), count),
                weights=mb.weights(parts) if weights is None else weights,
                sampled=sampled,
            )
        finally:
            for stage in self.stages.values():
                stage.end_step()

    def _infer(self, arguments: tuple[Any, ...], *, train: bool) -> dict[int, StageShapes]:
        """Return the shapes of this rank's stages for one micro-batch; every rank comes here with the same shapes."""
        inputs: Specs = tuple(TensorSpec.of(a) for a in arguments if isinstance(a, torch.Tensor))
        key = train, inputs
        if key not in self._shapes:
            with torch.enable_grad():  # an evaluation comes here without: what a tensor requires must not depend on it
                self._shapes[key] = self._infer_chain(inputs)
        return self._shapes[key]

    def _infer_chain(self, key: Specs) -> dict[int, StageShapes]:
        to_rank = self.schedule.stage_to_rank
        known: dict[int, StageShapes] = {}
        for index in sorted(self.stages):
            if index == 0:
                inputs = key
            elif index - 1 in known:
                inputs = known[index - 1].outputs
            else:
                inputs = receive_specs(from_rank=self.mesh.ranks[to_rank[index - 1]])
            known[index] = infer_stage(self.stages[index].module, inputs, rank=self.mesh.ranks[self.rank], stage=index, device=self.device)
            if index + 1 < len(to_rank) and to_rank[index + 1] != self.rank:
                send_specs(known[index].outputs, to_rank=self.mesh.ranks[to_rank[index + 1]])
        return known


def _build_module(layers: Sequence[Layer], part: range, *, seed: int, replica: int, device: torch.device) -> StageModule:
    names = [layers[i].name for i in part]
    modules = [layers[i].build(seed).to(device) for i in part]
    return StageModule(names, modules, first=part.start, seeder=LayerSeeder(seed, names, replica=replica, device=device))
