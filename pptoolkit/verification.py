"""Proof that a plan does not change training: a few steps under the plan beside plain PyTorch in one process, in float64.

The reference uses nothing of the pipeline: layers in a row, one micro-batch after the other, one backward each.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.data.order import batches
from pptoolkit.engine.assembly import assemble
from pptoolkit.engine.device import DeviceSetting
from pptoolkit.engine.layers import Layer, as_layers
from pptoolkit.engine.loader import BatchSource
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.optimisation import Optimisation, OptimizerFactory, Precision
from pptoolkit.engine.process_group import join, leave
from pptoolkit.engine.reference import FLOATS, Reference, State, to_float64
from pptoolkit.engine.replicas import whole
from pptoolkit.engine.step_end import sum_over_ranks
from pptoolkit.engine.step_losses import LossFunction
from pptoolkit.engine.training_step import TrainingStep
from pptoolkit.plan import Plan
from pptoolkit.telemetry.recorder import NullRecorder

TOLERANCE = 1e-6
_LEAST = 1e-12  # below this, a reference counts as zero


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDifference:
    """The largest relative differences of one layer over all steps; a difference is relative to the tensor's largest entry."""

    layer: str
    gradient: float
    parameter: float
    first_step: int | None  # the first step in which one of them is above the tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What came out; the same on every rank."""

    steps: int
    loss: float  # largest relative difference of a step's loss
    first_loss_step: int | None
    layers: tuple[LayerDifference, ...]
    tolerance: float = TOLERANCE

    @property
    def holds(self) -> bool:
        return self.first_difference is None

    @property
    def first_difference(self) -> tuple[str, int] | None:
        """The first (layer, step) that differs, in order of steps, then of layers; ``("loss", step)`` where only the loss does."""
        found = [(layer.first_step, index, layer.layer) for index, layer in enumerate(self.layers) if layer.first_step is not None]
        if self.first_loss_step is not None:
            found.append((self.first_loss_step, len(self.layers), "loss"))
        return (min(found)[2], min(found)[0]) if found else None

    def to_dict(self) -> dict[str, Any]:
        first = self.first_difference
        named = {"layer": first[0], "step": first[1]} if first is not None else None
        return {**asdict(self), "layers": [asdict(layer) for layer in self.layers], "holds": self.holds, "first_difference": named}

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> "Verification":
        layers = tuple(LayerDifference(**layer) for layer in body["layers"])
        plain = {key: body[key] for key in ("steps", "loss", "first_loss_step", "tolerance")}
        return cls(layers=layers, **plain)


def verify(
    layers: nn.Sequential | Sequence[Layer | nn.Module],
    dataset: Any,
    *,
    loss: LossFunction,
    optimizer: OptimizerFactory,
    plan: Plan,
    batch_size: int,
    steps: int = 3,
    seed: int = 0,
    optimisation: Optimisation | None = None,
    device: DeviceSetting | str = DeviceSetting.CPU,
) -> Verification:
    """Compare training under ``plan`` with one process; started with ``torchrun`` like a trainer, the same on every rank.

    Everything runs in float64: autocast, loss scaling and compilation are left out, and what remains of the settings is kept.
    Rank 0 also holds the whole model.

    Args:
        layers: As for :class:`pptoolkit.Trainer`; the rest likewise.
        dataset: Samples by index.
        loss: The loss.
        optimizer: Makes the optimizer.
        plan: What to verify.
        batch_size: Samples per step.
        steps: Steps to train.
        seed: Decides weights, dropout and the order of samples.
        optimisation: Settings of the training.
        device: As for :class:`pptoolkit.Trainer`. The reference runs there too: dropout draws other numbers on a GPU.

    Raises:
        InputError: If plan, model, data and ranks do not fit each other.
    """
    world = join(device)
    settings = replace(optimisation or Optimisation(), precision=Precision.FULL, loss_scale=None, compile=False)
    listed = as_layers(copy.deepcopy(layers))
    plan.check(len(listed))
    plan.pipeline_ranks(world.ranks)
    mesh = Mesh.of(plan.replicas, device_type=world.device.type)
    try:
        source = BatchSource(
            dataset,
            batch_size=batch_size,
            micro_batches=plan.micro_batches * settings.accumulation,
            replica=mesh.replica,
            replicas=mesh.replicas,
        )
        training = assemble(
            listed,
            plan,
            loss=loss,
            optimizer=optimizer,
            settings=settings,
            seed=seed,
            recorder=NullRecorder(),
            device=world.device,
            mesh=mesh,
            dtype=FLOATS,
        )
        reference = None
        if world.rank == 0:
            plain = as_layers(copy.deepcopy(layers))
            reference = Reference(
                plain, plan, loss=loss, optimizer=optimizer, settings=settings, seed=seed, source=source, device=world.device
            )
        return _compare(training, reference, source, steps=steps, seed=seed, names=[layer.name for layer in listed])
    finally:
        leave(world)


def _compare(
    training: TrainingStep, reference: Reference | None, source: BatchSource, *, steps: int, seed: int, names: Sequence[str]
) -> Verification:
    tally = _Tally(names)
    order = batches(source.samples, source.batch_size, seed=seed, source=source.name)
    seen = _Gradients(training)
    for step in range(steps):
        indices = next(order)
        inputs, targets = (to_float64(part) for part in source.batch(source.part(indices)))
        count = training.count(inputs if training.counts_samples else targets) if training.pipeline.mesh.pipeline_rank == 0 else 0.0
        (total,) = sum_over_ranks(count)
        outcome = training.run(inputs, targets, step=step, total=total)
        own = {name: whole(p.detach()).clone().cpu() for name, p in training.pipeline.named_parameters().items()}
        gradients, parameters = _gather(seen.last), _gather(own)
        if reference is not None:
            tally.add(step, outcome.loss, gradients, parameters, reference.step(indices, step))
    box: list[Any] = [tally.result(steps) if reference is not None else None]
    dist.broadcast_object_list(box, src=0)
    found: Verification = box[0]
    return found


class _Gradients:
    """Keeps the gradients of a step as they are when complete, before clipping."""

    def __init__(self, training: TrainingStep) -> None:
        self._training, self.last = training, State()
        training.watch_gradients = self._note

    def _note(self) -> None:
        named = self._training.pipeline.named_parameters()
        self.last = {name: whole(p.grad).clone().cpu() for name, p in named.items() if p.grad is not None}


def _gather(own: State) -> State:
    """Return the tensors of all ranks on rank 0; NaN where replicas differ, which is no number that a reference has."""
    gathered: list[Any] | None = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(own, gathered)
    merged: State = {}
    for state in gathered or ():
        for name, tensor in state.items():
            same = name not in merged or torch.equal(merged[name], tensor)
            merged[name] = tensor if same else torch.full_like(tensor, float("nan"))
    return merged


class _Tally:
    """Collects the differences step by step."""

    def __init__(self, names: Sequence[str]) -> None:
        self._gradient = dict.fromkeys(names, 0.0)
        self._parameter = dict.fromkeys(names, 0.0)
        self._first: dict[str, int] = {}
        self._loss = 0.0
        self._first_loss: int | None = None

    def add(self, step: int, loss: float, gradients: State, parameters: State, wanted: tuple[float, State, State]) -> None:
        """Compare one step with the reference's."""
        wanted_loss, wanted_gradients, wanted_parameters = wanted
        difference = abs(loss - wanted_loss) / max(abs(wanted_loss), _LEAST)
        self._loss = _larger(self._loss, difference)
        if not difference <= TOLERANCE and self._first_loss is None:
            self._first_loss = step
        for table, got, want in ((self._gradient, gradients, wanted_gradients), (self._parameter, parameters, wanted_parameters)):
            for name in want.keys() | got.keys():
                layer = max((known for known in table if name.startswith(f"{known}.")), key=len)
                found = relative_difference(got.get(name), want.get(name))
                table[layer] = _larger(table[layer], found)
                if not found <= TOLERANCE:
                    self._first.setdefault(layer, step)

    def result(self, steps: int) -> Verification:
        rows = tuple(
            LayerDifference(layer=name, gradient=self._gradient[name], parameter=self._parameter[name], first_step=self._first.get(name))
            for name in self._gradient
        )
        return Verification(steps=steps, loss=self._loss, first_loss_step=self._first_loss, layers=rows)


def relative_difference(got: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    """Return max |got - wanted| / max |wanted|; infinite where only one of them is there and is not zero."""
    if got is None or wanted is None:
        there = got if got is not None else wanted
        return 0.0 if there is None or not bool(there.abs().max() > _LEAST) else float("inf")
    if wanted.numel() == 0:
        return 0.0
    return float((got - wanted).abs().max() / wanted.abs().max().clamp_min(_LEAST))


def _larger(a: float, b: float) -> float:
    return b if b != b or b > a else a
