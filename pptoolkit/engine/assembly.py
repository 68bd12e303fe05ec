"""From a layer list, a plan and settings to a training step: stages built, frozen, compiled, sharded, in the order that works."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine.compiled import check_compile, compile_layer
from pptoolkit.engine.layers import Layer, built_modules, weights_digest
from pptoolkit.engine.loss import MicroBatchLoss
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.optimisation import Optimisation, OptimizerFactory, Precision, Replication, check_patterns, fits
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.precision import check_precision, compute_in, compute_type
from pptoolkit.engine.recompute import recompute_layer
from pptoolkit.engine.replicas import Replicas, ShardedReplicas, WholeReplicas
from pptoolkit.engine.step_losses import LossFunction
from pptoolkit.engine.training_step import TrainingStep
from pptoolkit.engine.update import Update
from pptoolkit.errors import ConfigError
from pptoolkit.plan import Plan
from pptoolkit.telemetry.recorder import Recorder


def assemble(
    layers: Sequence[Layer],
    plan: Plan,
    *,
    loss: LossFunction,
    optimizer: OptimizerFactory,
    settings: Optimisation,
    seed: int,
    recorder: Recorder,
    device: torch.device,
    mesh: Mesh,
    resident_bytes: Callable[[], int] = lambda: 0,
    dtype: torch.dtype | None = None,
) -> TrainingStep:
    """Build this rank's part of the training; every rank calls it together.

    Args:
        layers: The whole model.
        plan: Checked against the layers.
        loss: The user's loss.
        optimizer: The user's optimizer.
        settings: See :class:`Optimisation`.
        seed: Decides weights and dropout.
        recorder: Where events go.
        device: Where this rank's stages live.
        mesh: This rank's place.
        resident_bytes: Cheap reading of the process's memory.
        dtype: Convert parameters and buffers to this type; None: as the layers were built.

    Raises:
        ConfigError: If settings, plan and model do not go together.
    """
    precision = Precision(settings.precision)
    step_loss = MicroBatchLoss(loss, lambda: compute_type(precision, device))
    check_same_weights(layers)
    pipeline = Pipeline(layers, plan, loss=step_loss, seed=seed, recorder=recorder, device=device, resident_bytes=resident_bytes, mesh=mesh)
    modules = [pipeline.stages[index].module for index in sorted(pipeline.stages)]
    if dtype is not None:
        for module in modules:
            module.to(dtype)
    _check_settings(pipeline, settings)
    check_precision(precision, pipeline.parameters())
    _freeze(pipeline, settings.frozen)
    _change_layers(pipeline, plan, settings)
    for module in modules:
        compute_in(precision, module, device)
    replicas = _replicas(pipeline, mesh, settings)
    update = Update(pipeline.named_parameters(), optimizer, settings, replicas)
    return TrainingStep(pipeline, loss=step_loss, replicas=replicas, update=update, recorder=recorder, accumulation=settings.accumulation)


def check_same_weights(layers: Sequence[Layer]) -> None:
    """Refuse modules that were built differently on different ranks; those that the engine builds are seeded by name."""
    modules = built_modules(layers)
    if not modules or dist.get_world_size() == 1:
        return
    mine = torch.tensor([weights_digest(modules)])
    least, most = mine.clone(), mine.clone()
    dist.all_reduce(least, dist.ReduceOp.MIN)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if not torch.equal(least, most):
        raise ConfigError(
            "the ranks built the model with different weights; call torch.manual_seed(...) before building it, "
            "or pass pptoolkit.Layer factories, which are seeded by name"
        )


def _check_settings(pipeline: Pipeline, settings: Optimisation) -> None:
    if settings.compile:
        check_compile(pipeline.schedule)
    for name, layer in pipeline.named_layers().items():
        _check_norms(name, layer)
    if not (settings.frozen or settings.groups or settings.recompute):
        return
    # A pattern may fit layers of other ranks only, so all names are needed to refuse one that fits none.
    layers, parameters = _names_everywhere(pipeline.named_layers()), _names_everywhere(pipeline.named_parameters())
    check_patterns("frozen", settings.frozen, [*layers, *parameters])
    check_patterns("recompute", settings.recompute, layers)
    for group in settings.groups:
        check_patterns("groups", group.patterns, parameters)


def _names_everywhere(own: Mapping[str, object]) -> list[str]:
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, list(own))
    return [name for names in gathered for name in names]


def _check_norms(name: str, layer: nn.Module) -> None:
    parts = [part for part in layer.modules() if isinstance(part, nn.modules.batchnorm._NormBase)]
    if any(isinstance(part, nn.SyncBatchNorm) for part in parts):
        raise ConfigError(
            f"layer {name!r} has a SyncBatchNorm, whose collective inside a micro-batch would deadlock under a pipeline schedule; "
            "use BatchNorm (its running statistics are averaged over the replicas after every step) or a LayerNorm"
        )


def _freeze(pipeline: Pipeline, patterns: tuple[str, ...]) -> None:
    for layer_name, layer in pipeline.named_layers().items():
        for name, parameter in layer.named_parameters():
            if fits(layer_name, patterns) or fits(f"{layer_name}.{name}", patterns):
                parameter.requires_grad_(False)


def _change_layers(pipeline: Pipeline, plan: Plan, settings: Optimisation) -> None:
    for index, stage in pipeline.stages.items():
        for name, layer in zip(stage.module.names, stage.module.layers, strict=True):
            if settings.compile:
                compile_layer(layer)
            if index in plan.recompute or fits(name, settings.recompute):
                recompute_layer(layer)
                stage.splits = False  # a second run per part of the backward would cost more than the split gains


def _replicas(pipeline: Pipeline, mesh: Mesh, settings: Optimisation) -> Replicas:
    stages = [pipeline.stages[index] for index in sorted(pipeline.stages)]
    if settings.replication is Replication.FSDP and mesh.replicas > 1:
        return ShardedReplicas(mesh, [stage.module for stage in stages], stages)
    parameters = [p for p in pipeline.parameters() if p.requires_grad]
    return WholeReplicas(mesh, parameters, pipeline.norm_parameters(), list(_layers(stage.module for stage in stages)))


def _layers(modules: Iterable[nn.Module]) -> Iterable[nn.Module]:
    return (layer for module in modules for layer in module.layers)  # type: ignore[union-attr]
