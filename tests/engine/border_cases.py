"""What the ranks of the border tests run."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.errors import ConfigError
from pptoolkit.models import squared_error
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.telemetry import Recorder
from tests.engine import models


def pipeline_of(layers: list[Layer], loss: Any = squared_error, *, seed: int = 7, **plan: Any) -> Pipeline:
    """Build a pipeline; ``cuts`` may be a number of stages a rank."""
    cuts = plan.pop("cuts", 1)
    if isinstance(cuts, int):
        cuts = equal_layer_cuts(len(layers), cuts * dist.get_world_size())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "batch normalisation")
        return Pipeline(
            layers, Plan(cuts=cuts, **plan), loss=loss, seed=seed, recorder=Recorder(), device=torch.device("cpu"), resident_bytes=lambda: 0
        )


def train(
    name: str,
    micro_batches: tuple[int, ...],
    *,
    schedule: str,
    cuts: int | tuple[int, ...] = 1,
    samples: int = 8,
    steps: int = 5,
    clip: float | None = None,
    evaluate: bool = False,
    splits: bool = True,
) -> list[dict[str, Any]]:
    """Train a model once for each number of micro-batches."""
    return [_train(name, m, schedule, cuts, samples, steps, clip, evaluate, splits) for m in micro_batches]


def _train(
    name: str,
    micro_batches: int,
    schedule: str,
    cuts: int | tuple[int, ...],
    samples: int,
    steps: int,
    clip: float | None,
    evaluate: bool,
    splits: bool,
) -> dict[str, Any]:
    pipeline = pipeline_of(models.MODELS[name](), models.loss_of(name), cuts=cuts, schedule=schedule, micro_batches=micro_batches)
    for stage in pipeline.stages.values():
        stage.splits = splits
    trained = [p for p in pipeline.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=0.01) if trained else None
    losses, norms = [], []
    for step in range(steps):
        for parameter in trained:
            parameter.grad = None
        batch = models.batch_of(name, step, samples)
        if evaluate:
            pipeline.evaluate(*batch, step=step)
        losses.append(total(models.train_step(pipeline, *batch, step=step, sampled=step % micro_batches)))
        if clip is not None:
            squares = sum(float(p.grad.norm()) ** 2 for p in pipeline.norm_parameters() if p.grad is not None)
            norms.append(total(squares) ** 0.5)
            torch.nn.utils.clip_grads_with_norm_(pipeline.parameters(), clip, torch.tensor(norms[-1]))
        saved = pipeline.named_state()
        gradients = {n: t.grad.tolist() for n, t in saved.items() if t.grad is not None}
        if optimizer is not None:
            optimizer.step()
    return {
        "losses": losses,
        "norms": norms,
        "gradients": gradients,
        "state": {n: t.tolist() for n, t in saved.items()},
        "copies": {n: p.tolist() for n, p in pipeline.named_parameters().items() if n not in saved},
    }


def total(value: float) -> float:
    shares = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(shares)
    return float(shares)


def lengths(schedule: str, cuts: int) -> list[float]:
    """Train on micro-batches of different lengths, and other ones in the next step."""
    from pptoolkit.engine.micro_batch import MicroBatches

    pipeline = pipeline_of(models.MODELS["plain"](), cuts=cuts, schedule=schedule, micro_batches=3)
    losses = []
    for step, each in enumerate(((5, 2, 9), (2, 9, 9), (5, 2, 9), (1, 7, 3))):
        parts = [length_batch(n) for n in each]
        inputs, targets = MicroBatches([x for x, _ in parts]), MicroBatches([y for _, y in parts])
        losses.append(total(models.train_step(pipeline, inputs, targets, step=step)))
    return losses


def length_batch(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.arange(2 * length * models.WIDTH, dtype=torch.float64).reshape(2, length, models.WIDTH).sin()
    return x, x.cos()


def refused(layers_name: str, **plan: Any) -> tuple[str, str]:
    """Return the error that building and one step end with, on each rank."""
    try:
        pipeline = pipeline_of(REFUSED[layers_name](), **{"schedule": "1f1b", "micro_batches": 2, **plan})
        models.train_step(pipeline, *models.batch_of("plain", 0, 4), step=0)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


class Strange(models.Dense):
    """Returns what cannot cross a border."""

    def __init__(self, mode: Any) -> None:
        super().__init__()
        self.mode = mode

    def forward(self, x: torch.Tensor) -> Any:
        return {"h": torch.tanh(self.linear(x)), "mode": self.mode}


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no such thing")


class Asking(models.Dense):
    """Looks at numbers, keeps a table and counts: everything that inference on shapes has to leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.table: torch.Tensor | None = None
        self.calls = 0
        self.log: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.log.append(len(x))
        if self.table is None:
            self.table = torch.arange(models.WIDTH, dtype=x.dtype)
        if bool(x.sum() > 1e9):
            raise ValueError("out of range")
        self.seen += 1
        return torch.tanh(self.linear(x)) + self.table


class Changing(models.Dense):
    """Returns another shape when numbers are large: what inference cannot foresee."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))[:, : 3 if bool(x.abs().sum() > 1e-9) else models.WIDTH]


def _with(layer: Layer, at: int = 1) -> list[Layer]:
    layers = [Layer(f"l{i}", models.Dense) for i in range(4)]
    layers[at] = layer
    return layers


REFUSED = {
    "a text crosses": lambda: _with(Layer("strange", Strange, "fast")),
    "a number crosses": lambda: _with(Layer("strange", Strange, 0.5)),
    "a layer fails": lambda: _with(Layer("broken", Broken), 3),
    "an unknown input": lambda: _with(Layer("l1", models.Masked, inputs=("mask",))),
    "a change in place": lambda: _with(Layer("relu", nn.ReLU, inplace=True), 2),
    "a changing shape": lambda: _with(Layer("changing", Changing), 0),
    "an unknown tie": lambda: _with(Layer("l3", models.Dense, tie={"linear.weight": "l0.linear.wait"}), 3),
    "a tie of another shape": lambda: _with(Layer("l3", models.Dense, tie={"linear.weight": "l0.linear.bias"}), 3),
    "a skip that leads back": lambda: [*_with(Layer("l1", models.Merge, inputs="late"))[:3], Layer("l3", models.Dense, provides="late")],
}


def asking() -> dict[str, Any]:
    """Return what inference left behind in a layer that cannot run on shapes, and how often it was run."""
    pipeline = pipeline_of([Layer("asking", Asking), *models.MODELS["plain"]()[1:4]], schedule="1f1b", micro_batches=2)
    torch.manual_seed(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x, y = models.batch_of("plain", 0, 4)
        pipeline._shapes.look_up((x[:2],), {}, train=True)
        layer = pipeline.stages[0].module.layers[0] if pipeline.owns_first else None
        after = (layer.calls, layer.log[:], layer.table, float(layer.seen)) if layer is not None else None
        drawn = float(torch.rand(()))
        models.train_step(pipeline, x, y, step=0)
        models.train_step(pipeline, x, y, step=1)
    ran = (layer.calls, float(layer.seen)) if layer is not None else None
    return {"after": after, "ran": ran, "drawn": drawn, "warnings": [str(w.message) for w in caught], "known": len(pipeline._shapes)}


def events(name: str, *, schedule: str, micro_batches: int, cuts: int) -> list[tuple[int, ...]]:
    """Return this rank's events of one step with sampled layers."""
    pipeline = pipeline_of(models.MODELS[name](), models.loss_of(name), cuts=cuts, schedule=schedule, micro_batches=micro_batches)
    models.train_step(pipeline, *models.batch_of(name, 0, 2 * micro_batches), step=0, sampled=1)
    return pipeline._recorder.take(10_000)


def boundary_bytes(name: str) -> dict[str, int]:
    pipeline = pipeline_of(models.MODELS[name](), models.loss_of(name), schedule="1f1b", micro_batches=4)
    models.train_step(pipeline, *models.batch_of(name, 0, 8), step=0)
    return {fact.name: fact.boundary_bytes for fact in pipeline.layer_facts()}


def freezes_later() -> tuple[str, bool]:
    """Return what freezing a layer between two steps ends with, and whether it works once the shapes are forgotten."""
    pipeline = pipeline_of(models.MODELS["plain"](), schedule="zb-h1", micro_batches=2)
    batch = models.batch_of("plain", 0, 4)
    models.train_step(pipeline, *batch, step=0)
    for parameter in pipeline.parameters()[:6]:
        parameter.requires_grad_(False)
        parameter.grad = None
    try:
        models.train_step(pipeline, *batch, step=1)
    except ConfigError as error:
        refused = str(error)
    pipeline.forget_shapes()
    models.train_step(pipeline, *batch, step=1)
    return refused, all((p.grad is None) == (i < 6) for i, p in enumerate(pipeline.parameters()))


def bytes_kept(lengths: tuple[int, ...]) -> list[int]:
    """Return the bytes of receive buffers after each of some steps of different lengths."""
    pipeline = pipeline_of(models.MODELS["plain"](), schedule="1f1b", micro_batches=2)
    kept = []
    for step, length in enumerate(lengths):
        models.train_step(pipeline, *length_batch(length), step=step)
        kept.append(sum(stage.pool.allocated_bytes for stage in pipeline.stages.values()))
    return kept


def evaluate_views() -> list[float]:
    """Evaluate a model whose stages hand on what they got, with more micro-batches than buffers; the same in training."""
    layers = [Layer("l0", models.Dense), Layer("wide", models.Wide), Layer("flat", nn.Flatten), Layer("same", nn.Identity)]
    pipeline = pipeline_of(layers, schedule="1f1b", micro_batches=16)
    batch = models.batch_of("plain", 0, 32)
    return [
        total(pipeline.evaluate(*batch, step=0)),
        total(models.train_step(pipeline, *batch, step=0)),
        total(pipeline.evaluate(*batch, step=1)),
    ]


def skewed(schedule: str, cuts: int, steps: int) -> list[float]:
    """Train while every op of every rank is delayed at random."""
    pipeline = pipeline_of([Layer(f"l{i}", Jittery) for i in range(8)], cuts=cuts, schedule=schedule, micro_batches=8)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(total(models.train_step(pipeline, *models.batch_of("plain", 0, 8), step=step)))
        optimizer.step()
    return losses


class Jittery(models.Dense):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if type(x) is torch.Tensor:
            _nap(dist.get_rank())
            if y.requires_grad:
                y.register_hook(lambda _: _nap(dist.get_rank()))
        return y


def _nap(rank: int) -> None:
    import random
    import time

    time.sleep(random.Random(time.monotonic_ns() + rank).uniform(0, 0.003))
