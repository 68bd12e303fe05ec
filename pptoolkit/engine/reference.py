"""Training in one process with plain PyTorch, as the thing to compare with: layers in a row, one micro-batch after the other.

Of the engine it uses the seeds and the rules by which a batch is cut, so that dropout and batch norm can be compared too.
"""

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.loader import BatchSource
from pptoolkit.engine.loss import MicroBatchLoss
from pptoolkit.engine.optimisation import Optimisation, OptimizerFactory, fits
from pptoolkit.engine.randomness import LayerSeeder
from pptoolkit.engine.replicas import running_statistics
from pptoolkit.engine.step_losses import LossFunction, nothing_to_learn
from pptoolkit.engine.update import parameter_groups
from pptoolkit.engine.wiring import Wiring
from pptoolkit.plan import Plan

FLOATS = torch.float64
State = dict[str, torch.Tensor]


class Reference:
    """One process: the layers in a row, seeded as the documentation says, micro-batch by micro-batch."""

    def __init__(
        self,
        layers: Sequence[Layer],
        plan: Plan,
        *,
        loss: LossFunction,
        optimizer: OptimizerFactory,
        settings: Optimisation,
        seed: int,
        source: BatchSource,
        device: torch.device,
    ) -> None:
        self._layers = [layer.build(seed).to(device, FLOATS) for layer in layers]
        self._names = [layer.name for layer in layers]
        self._plan, self._settings, self._seed, self._source, self._device = plan, settings, seed, source, device
        self._loss = MicroBatchLoss(loss, nullcontext)
        self._wiring = Wiring.of(layers)
        for tie in self._wiring.ties:
            path, _, last = tie.parameter.rpartition(".")
            owner = self._layers[tie.owner].get_parameter(tie.owner_parameter)
            setattr(self._layers[tie.layer].get_submodule(path), last, owner)
        copies = {f"{self._names[tie.layer]}.{tie.parameter}" for tie in self._wiring.ties}
        self.parameters: dict[str, nn.Parameter] = {}
        for layer_name, layer in zip(self._names, self._layers, strict=True):
            for name, parameter in layer.named_parameters():
                full = f"{layer_name}.{name}"
                if full in copies:
                    continue
                parameter.requires_grad_(not (fits(layer_name, settings.frozen) or fits(full, settings.frozen)))
                self.parameters[full] = parameter
        self._optimizer = optimizer(parameter_groups(self.parameters, settings))
        self._base = [group["lr"] for group in self._optimizer.param_groups]
        self._scheduler = settings.scheduler(self._optimizer) if settings.scheduler is not None else None
        self._statistics = list(running_statistics(self._layers))

    def step(self, indices: Sequence[int] | Any, step: int) -> tuple[float, State, State]:
        """Return the loss, the gradients before clipping and the parameters after one step."""
        parts = list(self._micro_batches(indices))
        total = sum(count for *_, count in parts)
        loss = 0.0
        for replica in range(self._plan.replicas):
            self._begin_replica(replica)
            for owner, micro_batch, inputs, targets, count in parts:
                if owner == replica:
                    loss += self._run(inputs, targets, count / total if total else 0.0, step=step, micro_batch=micro_batch, replica=replica)
        self._end_replicas()
        gradients = {name: p.grad.clone().cpu() for name, p in self.parameters.items() if p.grad is not None}
        self._take_step(step)
        return loss, gradients, {name: p.detach().clone().cpu() for name, p in self.parameters.items()}

    def _micro_batches(self, indices: Sequence[int] | Any) -> Iterable[tuple[int, int, Any, Any, float]]:
        """Yield (replica, micro-batch, inputs, targets, what it counts for) of one step."""
        replicas, number = self._plan.replicas, len(indices)
        for replica in range(replicas):
            chosen = indices[number * replica // replicas : number * (replica + 1) // replicas]
            inputs, targets = (to_float64(part) for part in self._source.batch(chosen))
            passes = zip(mb.split(inputs, self._settings.accumulation), mb.split(targets, self._settings.accumulation), strict=True)
            number_in_step = 0
            for xs, ys in passes:
                for x, y in zip(mb.split(xs, self._plan.micro_batches), mb.split(ys, self._plan.micro_batches), strict=True):
                    count = self._loss.count(x if self._loss.counts_samples else y)
                    yield replica, number_in_step, mb.to_device(x, self._device), mb.to_device(y, self._device), count
                    number_in_step += 1

    def _run(self, inputs: Any, targets: Any, weight: float, *, step: int, micro_batch: int, replica: int) -> float:
        seeder = LayerSeeder(self._seed, self._names, replica, self._device)
        value: Any
        value, named = self._wiring.split_inputs(inputs)
        (seeds,) = seeder.seeds(step, range(micro_batch, micro_batch + 1))
        with seeder.untouched():
            for index, (layer, seed) in enumerate(zip(self._layers, seeds, strict=True)):
                seeder.start(seed)
                taken = {name: named[name] for name in self._wiring.takes[index]}
                value = layer(*value, **taken) if isinstance(value, tuple) else layer(value, **taken)
                if self._wiring.provides[index]:
                    named[self._wiring.provides[index]] = value
        loss = (self._loss(value, targets) if weight else nothing_to_learn(value)) * weight
        loss.backward()
        return loss.item()

    def _begin_replica(self, replica: int) -> None:
        if replica == 0:
            self._before = [t.clone() for t in self._statistics]
            self._sums = [torch.zeros_like(t) for t in self._statistics]
        else:
            self._end_one()

    def _end_one(self) -> None:
        for now, before, total in zip(self._statistics, self._before, self._sums, strict=True):
            total += now
            now.copy_(before)

    def _end_replicas(self) -> None:
        self._end_one()
        for now, total in zip(self._statistics, self._sums, strict=True):
            now.copy_(total / self._plan.replicas)

    def _take_step(self, step: int) -> None:
        if self._settings.learning_rate is not None:
            for group, base in zip(self._optimizer.param_groups, self._base, strict=True):
                group["lr"] = base * self._settings.learning_rate(step)
        if self._settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters.values(), self._settings.clip_norm)
        self._optimizer.step()
        if self._scheduler is not None:
            self._scheduler.step()
        self._optimizer.zero_grad(set_to_none=True)


def to_float64(batch: Any) -> Any:
    """Return ``batch`` with its floating-point tensors in float64."""
    if isinstance(batch, torch.Tensor):
        return batch.to(FLOATS) if batch.is_floating_point() else batch
    if isinstance(batch, dict):
        return {key: to_float64(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(to_float64(value) for value in batch)
    return batch
