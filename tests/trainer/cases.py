"""What the ranks of a trainer test run. Every rank calls the same function; answers are plain data."""

import contextlib
import functools
import io
import os
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pptoolkit.data.order import batches
from pptoolkit.engine.clocks import LinkProbe
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.loss import WeightedLoss
from pptoolkit.engine.optimisation import LossScale, Optimisation, ParameterGroup
from pptoolkit.engine.replicas import whole
from pptoolkit.errors import InputError, TrainingError
from pptoolkit.models import mlp_layers, squared_error
from pptoolkit.plan import Plan
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer
from pptoolkit.verification import verify
from tests.engine.cases import as_on_streams
from tests.trainer import reference

WIDTH, DEPTH, STEPS = 6, 8, 5
SILENT = TelemetrySettings(enabled=False)


class Stored:
    """A data set whose batch of step t is given, whatever the order: the same numbers for the ranks and the reference."""

    def __init__(self, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.x, self.y = (torch.cat(parts) for parts in zip(*batches, strict=True))

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.as_tensor([int(i) for i in indices])
        return self.x[chosen], self.y[chosen]


def numbers(samples: int, *, tokens: bool = False) -> Stored:
    """``STEPS`` batches; with ``tokens``, targets are classes, of which few are valid and very unequally many per sample."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(STEPS * samples, WIDTH, generator=generator, dtype=torch.float64)
    if not tokens:
        return Stored([(x, torch.randn(STEPS * samples, WIDTH, generator=generator, dtype=torch.float64))])
    y = torch.randint(0, WIDTH, (STEPS * samples,), generator=generator)
    y[torch.rand(len(y), generator=generator) < 0.5] = -100
    return Stored([(x, y)])


def in_order(data: Stored, samples: int, *, seed: int = 7) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The batches of ``STEPS`` steps as a trainer with ``seed`` takes them."""
    order = batches(len(data), samples, seed=seed)
    return (data.batch(next(order)) for _ in range(STEPS))


def token_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output, target)


def valid(target: torch.Tensor) -> torch.Tensor:
    return (target != -100).sum()


def adam(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1)


def warm_up(step: int) -> float:
    return min(1.0, (step + 1) / 3)


def train(
    folder: str,
    *,
    plan: Plan,
    samples: int = 16,
    tokens: bool = False,
    layers: Callable[[], list[Layer]] | None = None,
    no_decay: tuple[str, ...] = (),
    telemetry: TelemetrySettings = SILENT,
    device: str = "cpu",
    **settings: Any,
) -> dict[str, Any]:
    """Train ``STEPS`` steps with AdamW; return what the ranks know, gradients as they are before clipping."""
    if no_decay:
        settings["groups"] = (ParameterGroup(no_decay, {"weight_decay": 0.0}),)
    with Trainer(
        (layers or functools.partial(mlp_layers, WIDTH, DEPTH))(),
        loss=WeightedLoss(token_loss, weight=valid) if tokens else squared_error,
        optimizer=adam,
        plan=plan,
        run=Path(folder) / "run",
        seed=7,
        optimisation=Optimisation(**settings),
        telemetry=telemetry,
        progress=False,
        device=device,
    ) as trainer:
        seen = Watcher(trainer)
        result = trainer.fit(numbers(samples, tokens=tokens), batch_size=samples, steps=STEPS)
        return {**seen.facts(), "last_loss": result.loss, "replica": trainer.mesh.replica}


def train_on_streams(folder: str, *, plan: Plan, **named: Any) -> dict[str, Any]:
    """As :func:`train`, with the clock and the messages of GPUs."""
    with as_on_streams():
        return train(folder, plan=plan, telemetry=TelemetrySettings(port=None), **named)


class Watcher:
    """Notes what a trainer does, step by step."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._gradients: dict[str, Any] = {}
        self._rows: list[Any] = []
        trainer._training.watch_gradients = self._note_gradients
        tell = trainer._tell

        def note(source: Any, batch: Any, outcome: Any) -> None:
            self._rows.append(outcome)
            tell(source, batch, outcome)

        trainer._tell = note

    def _note_gradients(self) -> None:
        named = self._trainer.pipeline.named_parameters()
        self._gradients = {n: whole(p.grad).tolist() for n, p in named.items() if p.grad is not None}

    def facts(self) -> dict[str, Any]:
        state = self._trainer.pipeline.named_state()
        return {
            "losses": [row.loss for row in self._rows],
            "norms": [row.gradient_norm for row in self._rows],
            "rates": [row.learning_rate for row in self._rows],
            "skipped": [row.skipped for row in self._rows],
            "gradients": self._gradients,
            "parameters": {n: whole(t.detach()).tolist() for n, t in state.items() if isinstance(t, nn.Parameter)},
            "buffers": {n: t.tolist() for n, t in state.items() if not isinstance(t, nn.Parameter)},
        }


# -- single questions --------------------------------------------------------------------------------------------------


class Noisy(nn.Module):
    """Batch norm and dropout: what a second run of the forward pass would show in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(width), nn.Linear(width, width), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(self.linear(self.norm(x))))


def noisy_layers() -> list[Layer]:
    return [Layer(f"noisy{i}", Noisy, WIDTH) for i in range(4)]


def make_trainer(folder: str, plan: Plan, layers: list[Layer], *, progress: bool = False, **settings: Any) -> Trainer:
    return Trainer(
        layers,
        loss=squared_error,
        optimizer=adam,
        plan=plan,
        run=Path(folder) / "run",
        seed=7,
        optimisation=Optimisation(**settings),
        telemetry=TelemetrySettings(port=None) if progress else SILENT,
        progress=progress,
        link_probe=LinkProbe(payload_bytes=1 << 10, repeats=1),
    )


def train_noisy(folder: str, *, recompute: tuple[int, ...]) -> dict[str, Any]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan = Plan(cuts=(2,), micro_batches=4, recompute=recompute)
        answer = train(folder, plan=plan, layers=noisy_layers)
    return {**answer, "warnings": [str(w.message) for w in caught]}


def overflow(folder: str, *, scaled: bool) -> dict[str, Any]:
    """Put an infinity into a gradient of the last stage in step 2."""
    settings: dict[str, Any] = {"loss_scale": LossScale(initial=2.0**10)} if scaled else {"clip_norm": 1.0}
    trainer = make_trainer(folder, Plan(cuts=(4,), micro_batches=2), mlp_layers(WIDTH, DEPTH), **settings)
    seen = Watcher(trainer)
    states: list[list[float]] = []

    def inject() -> None:
        named = trainer.pipeline.named_parameters()
        states.append([float(p.detach().sum()) for p in named.values()])
        target = named.get("layer07.linear.weight")
        if trainer.step == 2 and target is not None and target.grad is not None:
            target.grad[0, 0] = float("inf")

    trainer._training.watch_gradients = inject
    error = ""
    try:
        trainer.fit(numbers(16), batch_size=16, steps=STEPS)
    except TrainingError as raised:
        error = str(raised)
    finally:
        trainer.close()
    states.append([float(p.detach().sum()) for p in trainer.pipeline.parameters()])
    changed = [before != after for before, after in pairwise(states)]
    return {**seen.facts(), "error": error, "parameters_changed": changed, "scale": trainer._training.update.scale.factor}


def autocast(folder: str, *, precision: str) -> dict[str, Any]:
    """Train in float32 under autocast; note what the layers compute in, and what crosses the border."""
    types: set[str] = set()
    data = numbers(16)
    data.x, data.y = data.x.float(), data.y.float()
    with make_trainer(
        folder, Plan(cuts=(4,), micro_batches=2), mlp_layers(WIDTH, DEPTH, dtype=torch.float32), precision=precision
    ) as trainer:
        for layer in trainer.pipeline.named_layers().values():
            layer.linear.register_forward_hook(lambda _m, _i, output: types.add(str(output.dtype)))
        seen = Watcher(trainer)
        trainer.fit(data, batch_size=16, steps=STEPS)
        evaluation = trainer.evaluate(data, batch_size=16)
        (stage,) = trainer.pipeline.stages.values()
        shapes = trainer.pipeline._shapes.first[stage.stage_index]
        sent, received = (str(border.wire[0].dtype) if border and border.wire else "" for border in (shapes.outputs, shapes.inputs))
        parameters = {str(p.dtype) for p in trainer.pipeline.parameters()}
        facts = seen.facts()
        for module in trainer.pipeline.stages.values():
            del module.module.forward  # the class's own, without autocast
        trainer.pipeline.forget_shapes()
        reference = trainer.evaluate(data, batch_size=16)
    return {
        **facts,
        "matmul_types": sorted(types - {"torch.float32"}),
        "parameter_types": sorted(parameters),
        "evaluation": evaluation,
        "reference_evaluation": reference,
        "sent_type": sent,
        "received_type": received,
    }


def rates(folder: str, *, kind: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"learning_rate": warm_up}
    if kind == "scheduler":
        settings = {"scheduler": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up)}
    groups = (ParameterGroup(("*.bias", "layer0[67].*"), {"weight_decay": 0.0}),)
    with make_trainer(folder, Plan(cuts=(2, 4, 6), micro_batches=2), mlp_layers(WIDTH, DEPTH), groups=groups, **settings) as trainer:
        seen = Watcher(trainer)
        trainer.fit(numbers(16), batch_size=16, steps=STEPS)
        assert trainer.optimizer is not None
        return {**seen.facts(), "decays": [group["weight_decay"] for group in trainer.optimizer.param_groups]}


def evaluate_between(folder: str, *, evaluate: bool) -> dict[str, Any]:
    """Train two replicas with batch norm and dropout; evaluate before, between and after, with batches that do not divide."""
    torch.manual_seed(3)
    other, data, found = numbers(7), numbers(16), []
    with make_trainer(folder, Plan(cuts=(2,), micro_batches=4, replicas=2), noisy_layers()) as trainer:
        seen = Watcher(trainer)
        for step in range(STEPS):
            if evaluate:
                found.append(trainer.evaluate(other, batch_size=9))
            trainer.fit(data, batch_size=16, steps=step + 1)
        model = nn.Sequential(*(layer.build(7) for layer in noisy_layers())).eval()
        with torch.no_grad():
            reference = squared_error(model(other.x), other.y).item()
        return {**seen.facts(), "evaluations": found, "reference": reference, "random": torch.rand(1).item()}


class Stream:
    """An iterable of batches without a length."""

    def __init__(self, batches: list[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


def streams(folder: str, *, lengths: tuple[int, int]) -> dict[str, Any]:
    """Train two replicas on streams of unequal length and unequal batches."""
    generator = torch.Generator().manual_seed(4)
    parts = [[tuple(torch.randn(2, size, WIDTH, generator=generator)) for _ in range(n)] for n, size in zip(lengths, (8, 5), strict=True)]
    with make_trainer(folder, Plan(cuts=(4,), micro_batches=2, replicas=2), mlp_layers(WIDTH, DEPTH)) as trainer:
        seen = Watcher(trainer)
        result = trainer.fit(Stream(parts[trainer.mesh.replica]), steps=9)
    joint = [tuple(torch.cat(pair) for pair in zip(a, b, strict=True)) for a, b in zip(*parts, strict=False)]
    plain = reference.train(mlp_layers(WIDTH, DEPTH), joint, loss=squared_error, make_optimizer=adam)
    return {**seen.facts(), "steps": result.steps, "message": result.message, "reference": plain["losses"]}


def unequal_tokens(folder: str, *, valid_tokens: tuple[int, ...]) -> dict[str, Any]:
    """Train on batches whose micro-batches of 8 samples have so many valid targets; beside it the losses of one process."""
    generator = torch.Generator().manual_seed(6)
    batches = []
    for _ in range(3):
        x = torch.randn(8 * len(valid_tokens), WIDTH, generator=generator, dtype=torch.float64)
        y = torch.full((len(x),), -100)
        for m, count in enumerate(valid_tokens):
            y[8 * m : 8 * m + count] = torch.randint(0, WIDTH, (count,), generator=generator)
        batches.append((x, y))
    with Trainer(
        mlp_layers(WIDTH, DEPTH),
        loss=WeightedLoss(token_loss, weight=valid),
        optimizer=adam,
        plan=Plan(cuts=(4,), micro_batches=len(valid_tokens)),
        run=Path(folder) / "run",
        seed=7,
        telemetry=SILENT,
        progress=False,
    ) as trainer:
        seen = Watcher(trainer)
        trainer.fit(Stream(batches), steps=len(batches))
        return {**seen.facts(), "reference": reference.train(mlp_layers(WIDTH, DEPTH), batches, loss=token_loss, make_optimizer=adam)}


def shown(folder: str, *, plan: Plan) -> dict[str, Any]:
    """Train with accumulation; return what the terminal shows."""
    layers = mlp_layers(WIDTH, DEPTH)
    with contextlib.redirect_stdout(io.StringIO()) as screen, make_trainer(folder, plan, layers, progress=True, accumulation=2) as trainer:
        seen = Watcher(trainer)
        trainer.fit(numbers(16), batch_size=16, steps=STEPS)
    return {**seen.facts(), "screen": screen.getvalue()}


def refused(folder: str, **settings: Any) -> str:
    """Return what a training that must not start says."""
    try:
        train(folder, **settings)
    except InputError as error:
        return str(error)
    return ""


def refused_before_building(folder: str) -> tuple[str, int]:
    built = []

    def build() -> nn.Module:
        built.append(1)
        return nn.Linear(WIDTH, WIDTH)

    layers = [Layer(f"layer{i}", build) for i in range(4)]
    return refused(folder, plan=Plan(cuts=(2,), micro_batches=2), layers=lambda: layers), len(built)


class Broken(nn.Module):
    """Trains wrongly under a pipeline on purpose: it knows how many micro-batches it has seen."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(width, width), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.linear(x) * (1.0 + 1e-3 * (self.seen // 7))


def verified(*, plan: Plan, broken: bool = False, device: str = "cpu", **settings: Any) -> dict[str, Any]:
    layers = noisy_layers() if not broken else mlp_layers(WIDTH, 4)
    if broken:
        layers[2] = Layer("broken", Broken, WIDTH)
    data = numbers(24)
    data.x, data.y = data.x.float(), data.y.float()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = verify(
            layers,
            data,
            loss=squared_error,
            optimizer=adam,
            plan=plan,
            batch_size=24,
            steps=3,
            seed=7,
            optimisation=Optimisation(**settings),
            device=device,
        )
    return found.to_dict()


def compiled(folder: str, *, plan: Plan) -> dict[str, Any]:
    """Train compiled and plain, with nothing left by earlier compilations."""
    two_layers = functools.partial(mlp_layers, WIDTH, 2)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(folder) / "compiled")
    torch.compiler.reset()
    return {"compiled": train(folder, plan=plan, layers=two_layers, compile=True), "plain": train(folder, plan=plan, layers=two_layers)}
