"""What the ranks of a re-cut test run: the same training with and without layers that change their rank in the middle of it."""

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.optimisation import Optimisation, ParameterGroup
from pptoolkit.errors import InputError
from pptoolkit.models import mlp_layers, sleeping_layers, squared_error
from pptoolkit.plan import Plan
from pptoolkit.planner.rebalance import AutoRebalance, Decision
from pptoolkit.rebalance import Rebalancer
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer
from tests.engine import models
from tests.trainer.cases import DEPTH, STEPS, WIDTH, Noisy, Stored, Watcher, adam, numbers, warm_up

WATCHED = TelemetrySettings(port=None)


class Script:
    """Decides for these cuts at these steps, whatever the measurements say."""

    def __init__(self, plan: Plan, cuts: Mapping[int, tuple[int, ...]]) -> None:
        self._plan, self._cuts = plan, dict(cuts)

    def look(self, *, step: int, steps: int) -> Decision:
        later = [other for other in self._cuts if other > step]
        plan = self._plan.evolve(cuts=self._cuts[step]) if step in self._cuts else None
        return Decision(plan=plan, sentence=f"step {step}", next_step=min(later, default=steps))

    def note_moving(self, seconds: float) -> None:
        """Nothing is decided by it."""

    def achieved(self) -> None:
        """Nothing was promised."""


class Counting(nn.Module):
    """Keeps a buffer that no checkpoint has and a number of its own, and computes with both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.seen = nn.Linear(width, width), 0
        self.register_buffer("mean", torch.zeros(width), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and type(x) is torch.Tensor and not torch._guards.detect_fake_mode([x]):
            self.seen += 1
            self.mean += 0.01 * x.detach().mean(0)
        return torch.tanh(self.linear(x)) + self.mean + 1e-3 * self.seen

    def get_extra_state(self) -> torch.Tensor:
        return torch.tensor(self.seen)

    def set_extra_state(self, state: torch.Tensor) -> None:
        self.seen = int(state)


def tied_layers() -> list[Layer]:
    """Dropout in every layer, the last one's weight tied to the first one's, a batch norm and a layer with state of its own between."""
    first, *inner, last = mlp_layers(WIDTH, DEPTH, dropout=0.2)
    tied = Layer(last.name, last.factory, *last.args, tie={"linear.weight": f"{first.name}.linear.weight"}, **last.kwargs)
    inner[2], inner[4] = Layer("noisy", Noisy, WIDTH), Layer("counting", Counting, WIDTH)
    return [first, *inner, tied]


def built_layers() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(*(layer.build() for layer in mlp_layers(WIDTH, DEPTH, dropout=0.2)))


# Without parameters and with skip connections, as the engine's own tests have them.
LAYERS: dict[str, Callable[[], Any]] = {
    "tied": tied_layers,
    "built": built_layers,
    "skips": models.MODELS["skips"],
    "without parameters": models.MODELS["without parameters"],
}


def momentum(groups: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.02, momentum=0.9)


OPTIMIZERS = {"adam": adam, "momentum": momentum}


def train(
    folder: str,
    *,
    plan: Plan,
    cuts: Mapping[int, tuple[int, ...]],
    model: str = "tied",
    optimizer: str = "adam",
    scheduled: bool = False,
    groups: bool = False,
    **settings: Any,
) -> dict[str, Any]:
    """Train with the cuts of ``plan``, and from the steps in ``cuts`` on with those."""
    settings |= {"scheduler": lambda o: torch.optim.lr_scheduler.LambdaLR(o, warm_up)} if scheduled else {"learning_rate": warm_up}
    if groups:
        settings["groups"] = (ParameterGroup(("*.bias",), {"weight_decay": 0.0}),)
    with (
        warnings.catch_warnings(),
        Trainer(
            LAYERS[model](),
            loss=squared_error,
            optimizer=OPTIMIZERS[optimizer],
            plan=plan,
            run=Path(folder) / "run",
            seed=7,
            optimisation=Optimisation(clip_norm=0.5, **settings),
            telemetry=WATCHED,
            auto_rebalance=True,
            progress=False,
        ) as trainer,
    ):
        rebalancer = trainer._rebalancing
        assert isinstance(rebalancer, Rebalancer)
        rebalancer._next_step = min(cuts, default=STEPS)
        if trainer.world.rank == 0:
            rebalancer._watch = Script(plan, cuts)
        seen = Watcher(trainer)
        data = numbers(16)
        trainer.fit(data, batch_size=16, steps=STEPS)
        update = trainer._training.update
        return {
            **seen.facts(),
            "layers": list(trainer.pipeline.named_layers()),
            "state": {name: {k: _plain(v) for k, v in state.items()} for name, state in update.named_state().items()},
            "evaluation": trainer.evaluate(data, batch_size=16),
            "plan": list(trainer.plan.cuts),
            "run": str(trainer.run.path),
            "series": _run_info_series(trainer),
        }


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, torch.Tensor) else value


def _run_info_series(trainer: Trainer) -> list[str]:
    registry = trainer.telemetry.metrics.registry
    return [s.labels["plan"] for family in registry.collect() for s in family.samples if s.name == "pptoolkit_run_info"]


def parameters_of(folder: str, *, cuts: tuple[int, ...]) -> dict[str, int]:
    """Build a trainer; return the parameters of each layer that is here."""
    with Trainer(
        mlp_layers(WIDTH, DEPTH),
        loss=squared_error,
        optimizer=adam,
        plan=Plan(cuts=cuts, micro_batches=2),
        run=Path(folder) / "run",
        telemetry=TelemetrySettings(enabled=False),
        progress=False,
    ) as trainer:
        layers = trainer.pipeline.named_layers()
        return {name: sum(p.numel() for p in layer.parameters()) for name, layer in layers.items()}


def measured(folder: str, *, times_ms: tuple[int, ...], cuts: tuple[int, ...], steps: int) -> dict[str, Any]:
    """Train sleeping layers with the real decision; return what rank 0 showed and where the run is."""
    seconds = [t / 1000 for t in times_ms]
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with (
        contextlib.redirect_stdout(io.StringIO()) as screen,
        Trainer(
            sleeping_layers([t * 0.4 for t in seconds], [t * 0.6 for t in seconds], width=8),
            loss=squared_error,
            optimizer=adam,
            plan=Plan(cuts=cuts, micro_batches=4),
            run=Path(folder) / "run",
            telemetry=WATCHED,
            auto_rebalance=AutoRebalance(every=10),
        ) as trainer,
    ):
        seen = Watcher(trainer)
        trainer.fit(Stored([(x, x.cos())]), batch_size=8, steps=steps)
    return {"screen": screen.getvalue(), "run": str(trainer.run.path), "plan": list(trainer.plan.cuts), "losses": seen.facts()["losses"]}


def refused(folder: str, **settings: Any) -> str:
    """Return what a training with auto_rebalance that must not start says."""
    trainer = {k: settings.pop(k) for k in ("telemetry", "sample_layers_every", "plan") if k in settings}
    try:
        Trainer(
            mlp_layers(WIDTH, DEPTH),
            loss=squared_error,
            optimizer=adam,
            run=Path(folder) / "run",
            optimisation=Optimisation(**settings),
            auto_rebalance=True,
            **trainer,
        ).close()
    except InputError as error:
        return str(error)
    return ""
