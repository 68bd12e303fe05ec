"""Cutting a training anew between two steps: layers change their rank, with all that training made of them, and no process starts again.

    rank 0   embed block0 block1 block2 |                       embed block0 |
    rank 1                              | block3 head    ->                  | block1 block2 block3 head
                                                                               parameters, buffers, optimizer state of block1, block2

Layers that stay keep their very modules. Layers that come are built as at the start, and then get, by name, what their old rank holds. All
ranks of a pipeline go through the same list of transfers in the same order, so no two of them can wait for each other; replicas do it side
by side. What belongs to no layer goes on on each rank: the loss scale, and the learning-rate scheduler, which is the same everywhere.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.optimisation import Optimisation, Replication
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.recompute import keep_activations
from pptoolkit.engine.training_step import TrainingStep
from pptoolkit.errors import ConfigError, TrainingError

Builder = Callable[[Sequence[Layer]], TrainingStep]
Key = tuple[str, str]  # name of a tensor, and of what belongs to it: "" is the tensor itself, else an entry of the optimizer's state


@dataclass(frozen=True, slots=True)
class Relocated:
    """A training that goes on under another plan.

    Args:
        training: To go on with; the one before is of no use any more.
        seconds: What it took this rank, waiting included.
        moved_bytes: What all ranks of the pipeline sent each other.
    """

    training: TrainingStep
    seconds: float
    moved_bytes: int


@dataclass(slots=True)
class _Holdings:
    """What one rank has before the move; without the tensors it is small and goes to every rank."""

    shapes: dict[Key, tuple[torch.Size, torch.dtype, str]]  # and the kind of device: optimizers keep some of their state on the host
    entries: dict[str, dict[str, Any]]  # of the optimizer's state, what is no tensor
    options: dict[str, dict[str, Any]]
    modes: dict[str, list[bool]]  # of each layer's modules: training or not
    extra: dict[str, dict[str, Any]]  # what modules keep beside tensors, where they say so by get_extra_state
    scheduler: Any
    wanted: list[str] = field(default_factory=list)  # names that the new stages have and this rank does not


def check_relocatable(settings: Optimisation, mesh_replicas: int) -> None:
    """Refuse, before training starts, what could not be moved.

    Raises:
        ConfigError: Naming it.
    """
    if settings.replication is Replication.FSDP and mesh_replicas > 1:
        raise ConfigError(
            "auto_rebalance cannot move layers whose parameters are sharded over the replicas; use replication='ddp', or train without it"
        )
    if settings.compile:
        raise ConfigError(
            "auto_rebalance cannot move compiled layers, which belong to their process; use compile=False, or train without it"
        )


def relocate(before: TrainingStep, layers: Sequence[Layer], *, build: Builder) -> Relocated:
    """Return the training under another plan; every rank calls it together, between two steps.

    Args:
        before: The training as it is. Its pipeline must not run any more.
        layers: The whole model.
        build: Makes this rank's part of the training from a layer list, under the new plan.

    Raises:
        TrainingError: If a layer that was built anew has other tensors than it had.
    """
    began_s = time.monotonic()
    old = before.pipeline
    kept = old.named_layers()
    for layer in kept.values():
        keep_activations(layer)  # the new plan says anew which layers recompute
    # Building gives copies of a tied parameter their owner's value, and an owner that comes does not have it yet.
    tied = old.tied_names
    had = {name: tensor.detach().clone() if name in tied else tensor for name, tensor in _named_tensors(old)}
    after = build([_as_built(layer, kept.get(layer.name)) for layer in layers])
    new = after.pipeline
    has = dict(_named_tensors(new))
    holdings = _gather(_holdings(before, had, wanted=[name for name in has if name not in had]), old.mesh)
    _take_from_here(had, has)
    received, moved_bytes = _exchange(_sources(before, had), holdings, old.mesh)
    for (name, entry), tensor in received.items():
        if not entry:
            _assign(new, name, has[name], tensor)
    _restore_modules(new, holdings, came=[name for name in new.named_layers() if name not in kept])
    after.update.go_on(
        before.update,
        state=_state(before, received, holdings),
        options={name: options for rank in holdings for name, options in rank.options.items()},
        scheduler=next((rank.scheduler for rank in holdings if rank.scheduler is not None), None),
    )
    after.watch_gradients = before.watch_gradients
    return Relocated(after, time.monotonic() - began_s, moved_bytes)


def collect_what_was_left() -> None:
    """Free the layers that moved away, also where long-lived objects are kept out of collections; nothing may refer to them any more."""
    frozen = gc.get_freeze_count() > 0
    gc.unfreeze()
    gc.collect()
    if frozen:
        gc.freeze()


def _as_built(layer: Layer, module: nn.Module | None) -> Layer:
    """Return a layer whose factory gives the module that is here; without one, it builds as at the start.

    Modules that existed before the engine are no longer the same on all ranks, and are not compared any more.
    """
    factory = partial(_same, module) if module is not None else partial(layer.factory, *layer.args, **layer.kwargs)
    return Layer(layer.name, factory, inputs=layer.inputs, provides=layer.provides, tie=layer.tie)


def _same(module: nn.Module) -> nn.Module:
    return module


def _named_tensors(pipeline: Pipeline) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield parameters and buffers, those too that no checkpoint has, by global name; a tied one by its owner's."""
    for layer_name, layer in pipeline.named_layers().items():
        for name, tensor in [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]:
            yield pipeline.owner_name(f"{layer_name}.{name}"), tensor


def _holdings(before: TrainingStep, had: Mapping[str, torch.Tensor], *, wanted: list[str]) -> _Holdings:
    update, layers = before.update, before.pipeline.named_layers()
    entries = {name: {k: v for k, v in state.items() if not _is_tensor(v)} for name, state in update.named_state().items()}
    return _Holdings(
        shapes={key: (tensor.shape, tensor.dtype, tensor.device.type) for key, tensor in _sources(before, had).items()},
        entries=entries,
        options=update.named_options(),
        modes={name: [module.training for module in layer.modules()] for name, layer in layers.items()},
        extra={name: found for name, layer in layers.items() if (found := _extra_state(layer))},
        scheduler=update.scheduler.state_dict() if update.scheduler is not None else None,
        wanted=wanted,
    )


def _sources(before: TrainingStep, had: Mapping[str, torch.Tensor]) -> dict[Key, torch.Tensor]:
    state = before.update.named_state()
    found = {(name, ""): tensor.detach() for name, tensor in had.items()}
    found.update({(name, entry): value for name, entries in state.items() for entry, value in entries.items() if _is_tensor(value)})
    return found


def _gather(mine: _Holdings, mesh: Mesh) -> list[_Holdings]:
    gathered: list[Any] = [mine]
    if mesh.pipeline_ranks > 1:
        gathered = [None] * mesh.pipeline_ranks
        dist.all_gather_object(gathered, mine, group=mesh.pipeline_group)
    return gathered


def _take_from_here(had: Mapping[str, torch.Tensor], has: Mapping[str, torch.Tensor]) -> None:
    """Give what this rank had under a name to the tensor that has the name now: a tie may have put another one in its place."""
    with torch.no_grad():
        for name, tensor in has.items():
            if name in had and had[name] is not tensor:
                tensor.copy_(had[name])


def _exchange(mine: Mapping[Key, torch.Tensor], holdings: Sequence[_Holdings], mesh: Mesh) -> tuple[dict[Key, torch.Tensor], int]:
    """Send and receive what changes its rank; return what came here, and what all ranks sent."""
    holder: dict[Key, int] = {}
    for rank in reversed(range(len(holdings))):
        holder.update(dict.fromkeys(holdings[rank].shapes, rank))  # of copies of a tied parameter, which are equal to the bit, the first
    received: dict[Key, torch.Tensor] = {}
    moved_bytes = 0
    for key in sorted(holder):
        source = holder[key]
        shape, dtype, kind = holdings[source].shapes[key]
        for target in (rank for rank, other in enumerate(holdings) if key[0] in other.wanted):
            moved_bytes += shape.numel() * dtype.itemsize
            if mesh.pipeline_rank == source:
                dist.send(mine[key].contiguous(), dst=mesh.ranks[target], group=mesh.pipeline_group)
            elif mesh.pipeline_rank == target:
                received[key] = torch.empty(shape, dtype=dtype, device=kind)  # of a GPU, this process's own
                dist.recv(received[key], src=mesh.ranks[source], group=mesh.pipeline_group)
    return received, moved_bytes


def _assign(pipeline: Pipeline, name: str, target: torch.Tensor, value: torch.Tensor) -> None:
    if target.shape == value.shape and target.dtype == value.dtype:
        with torch.no_grad():
            target.copy_(value)
        return
    if isinstance(target, nn.Parameter):
        raise TrainingError(
            f"{name} has shape {list(value.shape)} on the rank that it leaves and {list(target.shape)} where it was built anew; "
            "a layer that changes its parameters' shapes while it trains cannot be moved: train without auto_rebalance"
        )
    # A buffer may have grown in training.
    layer = max((n for n in pipeline.named_layers() if name.startswith(f"{n}.")), key=len)
    path, _, last = name[len(layer) + 1 :].rpartition(".")
    pipeline.named_layers()[layer].get_submodule(path)._buffers[last] = value


def _state(before: TrainingStep, received: Mapping[Key, torch.Tensor], holdings: Sequence[_Holdings]) -> dict[str, dict[str, Any]]:
    """Return the optimizer's state of every parameter that is here now."""
    state = before.update.named_state()
    for (name, entry), tensor in received.items():
        if entry:
            state.setdefault(name, {})[entry] = tensor
    for rank in holdings:
        for name, entries in rank.entries.items():
            if name in state or entries:
                state.setdefault(name, {}).update(entries)
    return state


def _restore_modules(pipeline: Pipeline, holdings: Sequence[_Holdings], *, came: Sequence[str]) -> None:
    layers = pipeline.named_layers()
    for name in came:
        (modes,) = (rank.modes[name] for rank in holdings if name in rank.modes)
        for module, training in zip(layers[name].modules(), modes, strict=True):
            module.training = training
        extra = next((rank.extra[name] for rank in holdings if name in rank.extra), {})
        for path, value in extra.items():
            layers[name].get_submodule(path).set_extra_state(value)


def _extra_state(layer: nn.Module) -> dict[str, Any]:
    has_its_own = nn.Module.get_extra_state
    return {path: module.get_extra_state() for path, module in layer.named_modules() if type(module).get_extra_state is not has_its_own}


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
