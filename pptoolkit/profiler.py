"""Measure a job's layers in one process, one after the other, for several sizes of micro-batch: the cost model before any pipeline runs."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from pptoolkit.config import RunConfig
from pptoolkit.engine.layers import as_layers
from pptoolkit.engine.loader import BatchSource
from pptoolkit.errors import ConfigError
from pptoolkit.job import Job
from pptoolkit.planner.cost_profile import CostLine, CostProfile, LayerProfile, fit_line


def default_sizes(batch_size: int, micro_batches: int) -> tuple[int, ...]:
    """Return half, one and twice the configured micro-batch, as far as the batch goes."""
    size = max(1, batch_size // micro_batches)
    return tuple(sorted({max(1, size // 2), size, min(2 * size, batch_size)}))


def profile_job(job: Job, config: RunConfig, *, sizes: Sequence[int] = (), repeats: int = 7, name: str = "") -> CostProfile:
    """Return what each layer of a job takes and holds.

    Args:
        job: The job.
        config: Its configuration: batch, micro-batches, optimizer.
        sizes: Samples of a micro-batch to measure; empty: :func:`default_sizes`.
        repeats: Passes of each size; the median counts, after one pass that fills caches.
        name: What to call it.

    Raises:
        ConfigError: If a size does not fit the batch, or the job trains on a GPU.
    """
    if config.training.device != "cpu":
        raise ConfigError(
            f"training.device={config.training.device!r}, but layers are profiled on the CPU, and what they cost there tells nothing of "
            'a GPU; train a few steps and use suggest on that run, or profile with device = "cpu"'
        )
    batch = config.training.batch_size
    chosen = tuple(sizes) or default_sizes(batch, config.plan.micro_batches)
    for size in chosen:
        if not 1 <= size <= batch:
            raise ConfigError(f"a micro-batch of {size} samples does not fit the batch of {batch}; use 1 to {batch}")
    layers = as_layers(job.layers)
    modules = [layer.build(config.training.seed) for layer in layers]
    names = [layer.name for layer in layers]
    source = BatchSource(job.dataset(), batch_size=batch, micro_batches=1)
    inputs, targets = source.batch(range(batch))
    points: dict[int, Passes] = {size: [([], [], []) for _ in modules] for size in chosen}
    for turn in range(repeats + 1):
        for size in chosen:  # in turn, so that what disturbs the machine for a while disturbs all sizes alike
            times = _one_pass(modules, job.loss, _first(inputs, size), _first(targets, size))
            for kept, new in zip(points[size], times, strict=True):
                for values, seconds in zip(kept, new, strict=True):
                    values.extend([seconds] if turn else [])  # the first pass fills caches
    saved, handed_on = _sizes(modules, _first(inputs, chosen[-1]))
    optimizers = [_optimizer_cost(module, job.make_optimizer(config), repeats) for module in modules]
    found = []
    for index, layer_name in enumerate(names):
        parameter_bytes = sum(p.numel() * p.element_size() for p in modules[index].parameters())
        lines = [_line(chosen, [points[size][index][part] for size in chosen]) for part in range(3)]
        optimizer_s, optimizer_bytes = optimizers[index]
        found.append(
            LayerProfile(
                name=layer_name,
                forward=lines[0],
                backward=lines[1],
                backward_input=lines[2],
                optimizer_s=optimizer_s,
                parameter_bytes=parameter_bytes,
                optimizer_bytes=optimizer_bytes,
                activation_bytes=saved[index] / chosen[-1],
                boundary_bytes=handed_on[index] / chosen[-1],
            )
        )
    return CostProfile(name=name, fingerprint=job.fingerprint, batch_size=batch, sizes=chosen, layers=tuple(found))


Passes = list[tuple[list[float], list[float], list[float]]]  # of each layer: forward, backward, and the backward's input part, seconds


def _one_pass(
    modules: Sequence[nn.Module], loss: Callable[[Any, Any], torch.Tensor], inputs: Any, targets: Any
) -> list[tuple[float, float, float]]:
    """Return seconds of forward, backward, and the backward's input part of each layer; the loss belongs to the last one."""
    value: Any = inputs if isinstance(inputs, tuple) else (inputs,)
    kept = []
    for index, module in enumerate(modules):
        taken = tuple(_leaf(t) for t in (value if isinstance(value, tuple) else (value,)))
        start = time.perf_counter()
        value = module(*taken)
        if index == len(modules) - 1:
            value = loss(value, targets)
        kept.append((taken, value, time.perf_counter() - start))
    times = []
    gradients: Any = None
    for module, (taken, output, forward_s) in zip(reversed(modules), reversed(kept), strict=True):
        backward_s, input_s, gradients = _backward(module, taken, output, gradients)
        times.append((forward_s, backward_s, input_s))
    return list(reversed(times))


def _backward(module: nn.Module, taken: tuple[Any, ...], output: Any, gradients: Any) -> tuple[float, float, Any]:
    """Return seconds of a whole backward and of its input part, and the gradients of the inputs."""
    outputs = [t for t in (output if isinstance(output, tuple) else (output,)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs:
        return 0.0, 0.0, None
    arriving = gradients if gradients is not None else [torch.ones_like(t) for t in outputs]
    arriving = [g for g in arriving if g is not None][: len(outputs)]
    wanted = [t for t in taken if isinstance(t, torch.Tensor) and t.requires_grad]
    input_s = 0.0
    if wanted:
        start = time.perf_counter()
        torch.autograd.grad(outputs, wanted, arriving, retain_graph=True, allow_unused=True)
        input_s = time.perf_counter() - start
    module.zero_grad(set_to_none=True)
    for t in wanted:
        t.grad = None
    start = time.perf_counter()
    torch.autograd.backward(outputs, arriving)
    whole_s = time.perf_counter() - start
    return whole_s, min(input_s, whole_s), [t.grad for t in taken if isinstance(t, torch.Tensor) and t.requires_grad]


def _leaf(value: Any) -> Any:
    """Cut the graph between layers, as a border between stages does."""
    if not isinstance(value, torch.Tensor):
        return value
    detached = value.detach()
    return detached.requires_grad_() if detached.is_floating_point() and value.requires_grad else detached


def _sizes(modules: Sequence[nn.Module], inputs: Any) -> tuple[list[int], list[int]]:
    """Return the bytes that each layer keeps for its backward, parameters aside and each storage once, and the bytes that it hands on."""
    saved, handed_on = [], []
    value: Any = inputs if isinstance(inputs, tuple) else (inputs,)
    known = {t.untyped_storage().data_ptr() for module in modules for t in (*module.parameters(), *module.buffers())}
    for module in modules:
        kept: dict[int, int] = {}

        def note(t: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            storage = t.untyped_storage()
            if storage.data_ptr() not in known:
                kept[storage.data_ptr()] = storage.nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
            value = module(*(_leaf(t) for t in (value if isinstance(value, tuple) else (value,))))
        saved.append(sum(kept.values()))
        outputs = value if isinstance(value, tuple) else (value,)
        handed_on.append(sum(t.numel() * t.element_size() for t in outputs if isinstance(t, torch.Tensor)))
    return saved, handed_on


def _optimizer_cost(module: nn.Module, make: Callable[..., torch.optim.Optimizer], repeats: int) -> tuple[float, int]:
    """Return seconds of an optimizer step over one layer, and the bytes of its gradients and state."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    if not parameters:
        return 0.0, 0
    before = [p.detach().clone() for p in parameters]
    optimizer = make(parameters)
    seconds = []
    for _ in range(repeats + 1):
        for p in parameters:
            p.grad = torch.zeros_like(p)
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    with torch.no_grad():
        for p, value in zip(parameters, before, strict=True):
            p.copy_(value)
            p.grad = None
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor) and t.dim()]
    state = sum(t.numel() * t.element_size() for t in tensors)
    return statistics.median(seconds[1:]), state + sum(p.numel() * p.element_size() for p in parameters)


def _line(sizes: Sequence[int], seconds: Sequence[Sequence[float]]) -> CostLine:
    medians = [statistics.median(values) for values in seconds]
    spreads = [(max(v) - min(v)) / 4 / m for v, m in zip(seconds, medians, strict=True) if m > 0]
    return fit_line([float(size) for size in sizes], medians, spread=min(0.5, statistics.median(spreads)) if spreads else 0.0)


def _first(value: Any, samples: int) -> Any:
    """Return the first samples of a batch."""
    if isinstance(value, torch.Tensor):
        return value[:samples]
    if isinstance(value, tuple | list):
        return type(value)(_first(v, samples) for v in value)
    if isinstance(value, dict):
        return {name: _first(v, samples) for name, v in value.items()}
    return value
