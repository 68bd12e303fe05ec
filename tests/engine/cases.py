"""What the ranks of a test run. Every rank calls the same function; rank-dependent results are plain data."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pptoolkit.engine import pipeline as pipeline_module
from pptoolkit.engine.event_clock import EventClock
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.routes import DirectedRoutes
from pptoolkit.models import mlp_layers, squared_error
from pptoolkit.plan import Plan, equal_layer_cuts
from pptoolkit.telemetry import Recorder
from tests.engine.models import train_step

WIDTH = 6


def batch(step: int, samples: int, width: int = WIDTH) -> tuple[torch.Tensor, torch.Tensor]:
    """The same numbers on every rank and in the reference."""
    generator = torch.Generator().manual_seed(1000 + step)
    x, y = torch.randn(2, samples, width, generator=generator, dtype=torch.float64)
    return x, y


class HostEvent:
    """A CUDA event of a stream that is the host itself: whatever was issued is over."""

    def __init__(self) -> None:
        self._at_ns = 0

    def record(self) -> None:
        self._at_ns = time.monotonic_ns()

    def synchronize(self) -> None:
        assert self._at_ns, "never recorded"

    def elapsed_time(self, end_event: "HostEvent") -> float:
        return (end_event._at_ns - self._at_ns) / 1e6


@contextmanager
def as_on_streams() -> Iterator[None]:
    """Let pipelines be made as on GPUs: ops timed by events, messages by a line for each direction. Gloo carries them."""

    def routes(mesh: Mesh, stage_to_rank: Sequence[int], device: torch.device) -> DirectedRoutes:
        return DirectedRoutes(mesh, stage_to_rank, device, backend="gloo")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_module, "make_device_clock", lambda _, recorder: EventClock(recorder, HostEvent))
        patch.setattr(pipeline_module, "make_routes", routes)
        yield


def make_pipeline(
    layers: list[Layer],
    *,
    schedule: str,
    micro_batches: int,
    cuts: tuple[int, ...] | None = None,
    seed: int = 7,
    on_streams: bool = False,
    device: str = "cpu",
    resident_bytes: Callable[[], int] = lambda: 0,
) -> Pipeline:
    plan = Plan(
        cuts=equal_layer_cuts(len(layers), dist.get_world_size()) if cuts is None else cuts, schedule=schedule, micro_batches=micro_batches
    )
    with as_on_streams() if on_streams else nullcontext():
        return Pipeline(
            layers,
            plan,
            loss=squared_error,
            seed=seed,
            recorder=Recorder(),
            device=torch.device(device),
            resident_bytes=resident_bytes,
        )


def train(
    *,
    schedule: str,
    micro_batches: int,
    samples: int = 8,
    steps: int = 4,
    depth: int = 8,
    dropout: float = 0.0,
    cuts: tuple[int, ...] | None = None,
    sampled: bool = False,
    seed: int = 7,
    on_streams: bool = False,
) -> dict[str, Any]:
    """Train a small MLP with Adam; return all losses, the last gradients and the final parameters of this rank's layers."""
    pipeline = make_pipeline(
        mlp_layers(WIDTH, depth, dropout=dropout),
        schedule=schedule,
        micro_batches=micro_batches,
        cuts=cuts,
        seed=seed,
        on_streams=on_streams,
    )
    initial = {name: t.detach().tolist() for name, t in pipeline.named_state().items()}
    optimizer = torch.optim.Adam(pipeline.parameters(), lr=0.01)
    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        share = train_step(pipeline, *batch(step, samples), step=step, sampled=step % micro_batches if sampled else -1)
        losses.append(_sum(share))
        gradients = {name: t.grad.tolist() for name, t in pipeline.named_state().items() if t.grad is not None}
        optimizer.step()
    return {
        "losses": losses,
        "gradients": gradients,
        "initial": initial,
        "parameters": {name: t.detach().tolist() for name, t in pipeline.named_state().items()},
    }


def evaluate_between(*, with_evaluation: bool) -> dict[str, Any]:
    """Train with batch norm and dropout, evaluating between the steps or not; return losses, evaluations and the random state."""
    layers = [Layer(f"l{i}", _Noisy, WIDTH) for i in range(4)]
    pipeline = make_pipeline(layers, schedule="1f1b", micro_batches=2)
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.05)
    losses, evaluations = [], []
    for step in range(3):
        if with_evaluation:
            evaluations.append(_sum(pipeline.evaluate(*batch(50 + step, 6), step=step)))
        losses.append(_sum(train_step(pipeline, *batch(step, 8), step=step)))
        optimizer.step()
        optimizer.zero_grad()
    return {
        "losses": losses,
        "evaluations": evaluations,
        "state": {name: t.detach().tolist() for name, t in pipeline.named_state().items()},
        "random": torch.rand(1).item(),
    }


def buffers_lent(*, micro_batches: int) -> int:
    """Return the bytes of receive buffers after a step of ``micro_batches`` micro-batches of two samples."""
    pipeline = make_pipeline(mlp_layers(WIDTH, 8), schedule="1f1b", micro_batches=micro_batches)
    train_step(pipeline, *batch(0, 2 * micro_batches), step=0)
    return sum(stage.pool.allocated_bytes for stage in pipeline.stages.values())


def lengths_that_change() -> list[float]:
    """Train on batches whose sequence length changes from step to step."""
    pipeline = make_pipeline(mlp_layers(WIDTH, 4), schedule="1f1b", micro_batches=2)
    losses = []
    for step, length in enumerate((8, 16, 8, 3)):
        x = torch.arange(4 * length * WIDTH, dtype=torch.float64).reshape(4, length, WIDTH).sin()
        losses.append(_sum(train_step(pipeline, x, x.cos(), step=step)))
    return losses


def events_of_a_step(*, micro_batches: int, on_streams: bool = False) -> list[tuple[int, ...]]:
    """Return this rank's events of one step with sampled layers."""
    pipeline = make_pipeline(mlp_layers(WIDTH, 4), schedule="1f1b", micro_batches=micro_batches, on_streams=on_streams)
    train_step(pipeline, *batch(0, 2 * micro_batches), step=0, sampled=1)
    pipeline.clock.resolve()
    return pipeline._recorder.take(10_000)


def weighed_in_steps(steps: int, *, micro_batches: int) -> list[list[tuple[int, int]]]:
    """Return, for each step, op and micro-batch of the ops with a reading of the memory."""
    pipeline = make_pipeline(mlp_layers(WIDTH, 4), schedule="gpipe", micro_batches=micro_batches, resident_bytes=lambda: 5)
    found = []
    for step in range(steps):
        train_step(pipeline, *batch(0, 2 * micro_batches), step=step)
        found.append([(event[3], event[2]) for event in pipeline._recorder.take(10_000) if event[8] == 5])
    return found


def fails_in(micro_batch: int, where: str) -> tuple[str, str]:
    """Raise inside the only stage (peers of a failed rank would wait for it); return the error's kind and text."""
    pipeline = make_pipeline([Layer("l0", _Fragile, WIDTH, at=micro_batch, where=where)], schedule="1f1b", micro_batches=4)
    try:
        train_step(pipeline, *batch(0, 8), step=2)
    except Exception as error:
        return type(error).__name__, str(error)
    return "", ""


class _Noisy(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.BatchNorm1d(width), nn.Linear(width, width), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(self.linear(self.norm(x))))


class _Boom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        raise ValueError("backward went wrong")


class _Fragile(nn.Module):
    """Raises in the forward or backward of the given micro-batch."""

    def __init__(self, width: int, *, at: int, where: str) -> None:
        super().__init__()
        self.linear, self.at, self.where, self.seen = nn.Linear(width, width), at, where, -1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from torch._subclasses.fake_tensor import FakeTensor

        if isinstance(x, FakeTensor):
            return self.linear(x)
        self.seen += 1
        if self.seen == self.at and self.where == "forward":
            raise ValueError("forward went wrong")
        y = self.linear(x)
        return _Boom.apply(y) if self.seen == self.at and self.where == "backward" else y


def _sum(value: float) -> float:
    total = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)
