"""Small models that bring something difficult over a border, by name, and how each is trained with nothing of the engine.

All layers are ``Layer`` lists of eight, so that they can be cut into eight stages.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.pipeline import Pipeline

WIDTH, VOCABULARY = 6, 11


def train_step(pipeline: Pipeline, *batch: Any, **named: Any) -> float:
    """Run one pass of ``pipeline``; return its share of the loss, which is 0 on ranks without the last stage."""
    return pipeline.run_pass(*batch, **named).read()


class Dense(nn.Module):
    def __init__(self, width: int = WIDTH, *, frozen: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.requires_grad_(not frozen)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Branches(Dense):
    """Opens a tuple: floats that need a gradient, integers and booleans; ``spare`` is never used again."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        h = torch.tanh(self.linear(x))
        return h, (x[:, 0] > 0).long(), x > 0, h * 2


class Through(Dense):
    """Hands the tuple on; the integers come through as they are."""

    def forward(self, h: Tensor, ids: Tensor, mask: Tensor, spare: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return torch.tanh(self.linear(h)) + ids[:, None], ids, mask, spare


class Join(Dense):
    def forward(self, h: Tensor, ids: Tensor, mask: Tensor, spare: Tensor) -> Tensor:
        return self.linear(h) * (1 + ids[:, None])


class OpenDict(Dense):
    def forward(self, x: Tensor) -> dict[str, Any]:
        h = torch.tanh(self.linear(x))
        return {"h": h, "none": None, "more": [h * 0.5, (h.sum(-1), None)]}


class InDict(Dense):
    def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        half, (total, none) = batch["more"]
        assert batch["none"] is None
        assert none is None
        return {**batch, "h": torch.tanh(self.linear(batch["h"])) + half + total[:, None]}


class CloseDict(Dense):
    def forward(self, batch: dict[str, Any]) -> Tensor:
        return self.linear(batch["h"]) + batch["more"][1][0][:, None]


class Sometimes(Dense):
    """Uses its second input only in micro-batches of three samples."""

    def forward(self, h: Tensor, extra: Tensor) -> tuple[Tensor, Tensor]:
        return (torch.tanh(self.linear(h)) + (extra if len(h) == 3 else 0.0)), extra


class Pair(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.linear(x)), self.other(x)


class First(nn.Module):
    def forward(self, h: Tensor, extra: Tensor) -> Tensor:
        return h


class Transposed(Dense):
    """Returns a tensor whose memory is not in the order of its dimensions, as a view of a larger one."""

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.linear(x))
        return torch.stack([y, -y], dim=-1).permute(2, 0, 1)[0]


class Masked(Dense):
    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) * mask[:, None]


class Scaled(Dense):
    def forward(self, x: Tensor, *, mask: Tensor, scale: dict[str, Tensor]) -> Tensor:
        return self.linear(x) * mask[:, None] * scale["by"]


class Merge(Dense):
    def forward(self, x: Tensor, *, early: Tensor) -> Tensor:
        return torch.tanh(self.linear(x)) + early


class MergePair(Dense):
    def forward(self, x: Tensor, *, early: Tensor, pair: tuple[Tensor, Tensor]) -> Tensor:
        return torch.tanh(self.linear(x)) * early + pair[0] - pair[1]


class Embed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids)


class Head(nn.Module):
    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x)


class BatchNorm(Dense):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(self.norm(x)))


class Wide(nn.Module):
    """(B, width) to (B, width, 1), for the stage that only flattens."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, None]


def _dense(*numbers: int, frozen: Callable[[int], bool] = lambda _: False) -> list[Layer]:
    return [Layer(f"l{i}", Dense, frozen=frozen(i)) for i in numbers]


def _tied(owner: str, copy: str) -> list[Layer]:
    """Embedding and head with one table, and two of the layers between with one weight."""
    ties = {owner: None, copy: {("table.weight" if copy == "embed" else "out.weight"): _table(owner)}}
    middle = [Layer(f"l{i}", Dense, tie={"linear.weight": "l1.linear.weight"} if i == 5 else None) for i in range(1, 7)]
    return [Layer("embed", Embed, tie=ties["embed"]), *middle, Layer("head", Head, tie=ties["head"])]


def _table(layer: str) -> str:
    return "embed.table.weight" if layer == "embed" else "head.out.weight"


MODELS: dict[str, Callable[[], list[Layer]]] = {
    "plain": lambda: _dense(*range(8)),
    "tuple of kinds": lambda: [Layer("open", Branches), *(Layer(f"l{i}", Through) for i in range(1, 7)), Layer("close", Join)],
    "dict": lambda: [Layer("open", OpenDict), *(Layer(f"l{i}", InDict) for i in range(1, 7)), Layer("close", CloseDict)],
    "used sometimes": lambda: [Layer("open", Pair), *(Layer(f"l{i}", Sometimes) for i in range(1, 7)), Layer("close", First)],
    "not contiguous": lambda: [Layer(f"l{i}", Transposed) for i in range(8)],
    "masked": lambda: [
        *_dense(0, 1, 2),
        Layer("l3", Masked, inputs=("mask",)),
        *_dense(4, 5, 6),
        Layer("l7", Scaled, inputs=("mask", "scale")),
    ],
    "skips": lambda: [
        Layer("l0", Dense, provides="early"),
        Layer("l1", Pair, provides="pair"),
        Layer("l2", First),
        *_dense(3),
        Layer("l4", Merge, inputs="early"),
        *_dense(5),
        Layer("l6", MergePair, inputs=("early", "pair")),
        *_dense(7),
    ],
    "tied to the embedding": lambda: _tied("embed", "head"),
    "tied to the head": lambda: _tied("head", "embed"),
    "frozen first half": lambda: _dense(*range(8), frozen=lambda i: i < 4),
    "frozen second half": lambda: _dense(*range(8), frozen=lambda i: i >= 4),
    "frozen every other": lambda: _dense(*range(8), frozen=lambda i: i % 2 == 0),
    "frozen but one": lambda: _dense(*range(8), frozen=lambda i: i != 2),
    "frozen ends": lambda: _dense(*range(8), frozen=lambda i: i in (0, 7)),
    "without parameters": lambda: [
        *_dense(0, 1),
        Layer("relu2", nn.ReLU),
        Layer("wide3", Wide),
        Layer("flat4", nn.Flatten),
        Layer("relu5", nn.ReLU),
        *_dense(6),
        Layer("same7", nn.Identity),
    ],
    "batch norm": lambda: [Layer(f"l{i}", BatchNorm if i % 2 else Dense) for i in range(8)],
}


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    return functional.cross_entropy if name.startswith("tied") else functional.mse_loss


def batch_of(name: str, step: int, samples: int) -> tuple[Any, Tensor]:
    """The same numbers on every rank and in the reference."""
    generator = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(2, samples, WIDTH, generator=generator, dtype=torch.float64)
    if name.startswith("tied"):
        ids = torch.randint(VOCABULARY, (2, samples), generator=generator)
        return ids[0], ids[1]
    if name == "masked":
        mask = torch.rand(samples, generator=generator, dtype=torch.float64)
        return {"x": x, "mask": mask, "scale": {"by": x.abs() + 1}}, y
    return x, y


def train_plainly(
    name: str, *, samples: int = 8, steps: int = 5, seed: int = 7, micro_batches: int = 1, clip: float | None = None
) -> dict[str, Any]:
    """Train with nothing of the engine but the built layers, in one process, micro-batch after micro-batch."""
    layers = MODELS[name]()
    modules = {layer.name: layer.build(seed) for layer in layers}
    for layer in layers:
        for parameter, owner in layer.tie.items():
            other, _, rest = owner.partition(".")
            path, _, last = parameter.rpartition(".")
            setattr(modules[layer.name].get_submodule(path), last, modules[other].get_parameter(rest))
    tied = {f"{layer.name}.{parameter}" for layer in layers for parameter in layer.tie}
    state = {f"{m}.{n}": t for m, module in modules.items() for n, t in module.state_dict(keep_vars=True).items() if f"{m}.{n}" not in tied}
    parameters = {n: t for n, t in state.items() if isinstance(t, nn.Parameter)}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.01)
    losses, norms = [], []
    for step in range(steps):
        optimizer.zero_grad()
        inputs, targets = batch_of(name, step, samples)
        edges = [samples * i // micro_batches for i in range(micro_batches + 1)]
        losses.append(0.0)
        for a, b in pairwise(edges):
            output = _run(layers, modules, _cut(inputs, a, b))
            loss = loss_of(name)(output, targets[a:b]) * ((b - a) / samples)
            loss.backward()
            losses[-1] += loss.item()
        if clip is not None:
            norms.append(float(nn.utils.clip_grad_norm_(parameters.values(), clip)))
        gradients = {n: p.grad.tolist() for n, p in parameters.items() if p.grad is not None}
        optimizer.step()
    return {"losses": losses, "norms": norms, "gradients": gradients, "state": {n: t.tolist() for n, t in state.items()}}


def _cut(batch: Any, a: int, b: int) -> Any:
    return {k: _cut(v, a, b) for k, v in batch.items()} if isinstance(batch, dict) else batch[a:b]


def _run(layers: Sequence[Layer], modules: dict[str, nn.Module], inputs: Any) -> Any:
    named = dict(inputs) if isinstance(inputs, dict) else {}
    value = named.pop("x") if named else inputs
    for layer in layers:
        taken = {name: named[name] for name in layer.inputs}
        value = modules[layer.name](*value, **taken) if isinstance(value, tuple) else modules[layer.name](value, **taken)
        if layer.provides:
            named[layer.provides] = value
    return value
