"""What the ranks of a trainer test run. Every rank calls the same function; answers are plain data."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.loss import WeightedLoss
from pptoolkit.engine.optimisation import Optimisation, ParameterGroup
from pptoolkit.engine.replicas import whole
from pptoolkit.models import mlp_layers, squared_error
from pptoolkit.plan import Plan
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer

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
    from pptoolkit.data.order import batches

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
    ) as trainer:
        seen = Watcher(trainer)
        result = trainer.fit(numbers(samples, tokens=tokens), batch_size=samples, steps=STEPS)
        return {**seen.facts(), "last_loss": result.loss, "replica": trainer.mesh.replica}


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
