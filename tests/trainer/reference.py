"""Training in one process with plain PyTorch: nothing of the engine but the built layers, the whole batch at once."""

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch

from pptoolkit.engine.layers import Layer


def train(
    layers: Sequence[Layer],
    batches: Sequence[tuple[torch.Tensor, torch.Tensor]],
    *,
    loss: Callable[[Any, Any], torch.Tensor],
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
    seed: int = 7,
    clip_norm: float | None = None,
    frozen: Sequence[str] = (),
    no_decay: Sequence[str] = (),
    learning_rate: Callable[[int], float] | None = None,
) -> dict[str, Any]:
    """Return losses, gradient norms, learning rates, and by name the last gradients and the final parameters."""
    model = torch.nn.Sequential(*(layer.build(seed) for layer in layers))
    parameters = {f"{layer.name}.{n}": p for layer, part in zip(layers, model, strict=True) for n, p in part.named_parameters()}
    for name, p in parameters.items():
        p.requires_grad_(not any(fnmatchcase(name, f) or fnmatchcase(name.split(".")[0], f) for f in frozen))
    training = {n: p for n, p in parameters.items() if p.requires_grad}
    groups: Any = list(training.values())
    if no_decay:
        without = [p for n, p in training.items() if any(fnmatchcase(n, f) for f in no_decay)]
        groups = [{"params": without, "weight_decay": 0.0}, {"params": [p for p in training.values() if all(p is not w for w in without)]}]
    optimizer = make_optimizer(groups)
    base = optimizer.param_groups[0]["lr"]
    losses, norms, rates, gradients = [], [], [], {}
    for step, (x, y) in enumerate(batches):
        if learning_rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = base * learning_rate(step)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.zero_grad()
        value = loss(model(x), y)
        value.backward()
        losses.append(value.item())
        gradients = {n: p.grad.clone() for n, p in training.items() if p.grad is not None}
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm if clip_norm is not None else float("inf"))))
        optimizer.step()
    return {
        "losses": losses,
        "norms": norms,
        "rates": rates,
        "gradients": {n: g.tolist() for n, g in gradients.items()},
        "parameters": {n: p.detach().tolist() for n, p in parameters.items()},
    }
