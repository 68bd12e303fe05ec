"""The job of benchmarks/accounting.py, started by torchrun: two stages that sleep, and a delay in one place at a time.

It keeps a clock of its own over all that it brings along (layers, loss, loader, optimizer), on which the accounting's parts are
checked: a processor that has idled through somebody's delay is slower for the next milliseconds, and that time truly passes.

accounting_job.py FOLDER ROUNDS KIND,KIND,...
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pptoolkit as pp
from pptoolkit.models.sleeping import sleep_precisely

NONE, FORWARD, BACKWARD, DATA, OPTIMIZER, LINK = "none", "forward", "backward", "data", "optimizer", "link"
PARTS = ("compute", "data", "optimizer")
KINDS = (FORWARD, BACKWARD, DATA, OPTIMIZER, LINK)
MICRO_BATCHES, ROWS, WIDTH = 4, 4, 8192
MESSAGE_BYTES = ROWS * WIDTH * 4
BLOCK_STEPS = 10  # the first of them is not counted: the change takes effect in it
DELAY_S = 0.040  # a step, at one rank
RATE_BITS, BURST_BYTES = 100_000_000, 4096
_OWN_S = 0.001  # of every layer, each way


def kind_of(step: int, kinds: list[str]) -> str:
    """Return what is delayed in a step: blocks without and with a delay take turns."""
    block = step // BLOCK_STEPS
    return NONE if block % 2 == 0 else kinds[block // 2 % len(kinds)]


def steps_of(rounds: int, kinds: list[str]) -> int:
    return rounds * len(kinds) * 2 * BLOCK_STEPS


class Delays:
    """Knows, on each rank, which step it is and what is delayed in it, and how long everything really took."""

    def __init__(self, kinds: list[str]) -> None:
        self._kinds, self.step, self.kind = kinds, -1, NONE
        self._backward_began_s: float | None = None
        self.passed_s: dict[str, list[float]] = {part: [] for part in PARTS}  # by part, one a step

    def next_step(self) -> None:
        self.step += 1
        self.kind = kind_of(self.step, self._kinds)
        for seconds in self.passed_s.values():
            seconds.append(0.0)

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add what the block takes to what passed in ``part`` of this step."""
        began = time.perf_counter()
        yield
        self._add(part, began)

    def begin_backward(self) -> None:
        """Begin to time a backward; the first of several calls counts."""
        if self._backward_began_s is None:
            self._backward_began_s = time.perf_counter()

    def end_backward(self) -> None:
        if self._backward_began_s is not None:
            self._add("compute", self._backward_began_s)
        self._backward_began_s = None

    def _add(self, part: str, began_s: float) -> None:
        if self.step >= 0:
            self.passed_s[part][-1] += time.perf_counter() - began_s


class Layer(nn.Module):
    """A vector that scales, with sleeps of known length on both ways; stage 1 (its first layer) may be delayed."""

    def __init__(self, delays: Delays, delayed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.delays, self._delayed = delays, delayed

    def forward(self, x: Tensor) -> Tensor:
        with self.delays.time("compute"):
            # The weight's gradient is the last thing that a layer's backward computes.
            result: Tensor = _Sleep.apply(x * _InBackward.apply(self.weight, self.delays.end_backward), self)
        return result

    def sleep(self, kind: str) -> None:
        sleep_precisely(_OWN_S + (DELAY_S / MICRO_BATCHES if self._delayed and self.delays.kind == kind else 0.0))


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        if type(x) is Tensor:  # not while shapes are inferred
            layer.sleep(FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.delays.begin_backward()
        ctx.layer.sleep(BACKWARD)
        return gradient, None


class _InBackward(torch.autograd.Function):
    """Identity that calls something when the backward comes to it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[], None]) -> Tensor:
        ctx.call = call
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return gradient, None


def timed_loss(delays: Delays) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        with delays.time("compute"):
            result: Tensor = _InBackward.apply(nn.functional.mse_loss(output, target), delays.begin_backward)
        return result

    return loss


class Data:
    """The same batch again and again; its loader is what may be slow, on rank 0."""

    def __init__(self, delays: Delays, rank: int, interface: str) -> None:
        self._x = torch.randn(MICRO_BATCHES * ROWS, WIDTH, generator=torch.Generator().manual_seed(0))
        self._delays, self._rank, self._interface = delays, rank, interface

    def __len__(self) -> int:
        return 1 << 20

    def batch(self, _indices: Any) -> tuple[Tensor, Tensor]:
        before = self._delays.kind
        self._delays.next_step()
        with self._delays.time("data"):
            if self._rank == 0 and before != self._delays.kind and LINK in (before, self._delays.kind):
                self._limit(self._delays.kind == LINK)
            if self._rank == 0 and self._delays.kind == DATA:
                sleep_precisely(DELAY_S)
        return self._x, self._x

    def _limit(self, on: bool) -> None:
        rule = f"tc qdisc replace dev {self._interface} root tbf rate {RATE_BITS}bit burst {BURST_BYTES} limit 8mb"
        subprocess.run((rule if on else f"tc qdisc del dev {self._interface} root").split(), check=True, capture_output=True, timeout=20)


class Optimizer(torch.optim.SGD):
    """SGD that may be slow, on rank 1."""

    def __init__(self, parameters: Any, delays: Delays, rank: int) -> None:
        super().__init__(parameters, lr=0.0)
        self._delays, self._rank = delays, rank

    def step(self, closure: Any = None) -> Any:
        with self._delays.time("optimizer"):
            if self._rank == 1 and self._delays.kind == OPTIMIZER:
                sleep_precisely(DELAY_S)
            return super().step(closure)


def main() -> None:
    folder, rounds, kinds = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    rank, delays = int(os.environ["RANK"]), Delays(kinds)
    with pp.Trainer(
        [pp.Layer(f"layer{i}", Layer, delays, i == 1) for i in range(2)],
        loss=timed_loss(delays),
        optimizer=lambda parameters: Optimizer(parameters, delays, rank),
        plan=pp.Plan(cuts=(1,), micro_batches=MICRO_BATCHES),
        run=f"{folder}/run",
        telemetry=pp.TelemetrySettings(port=None),
        progress=False,
    ) as trainer:
        trainer.fit(
            Data(delays, rank, os.environ.get("GLOO_SOCKET_IFNAME", "")), batch_size=MICRO_BATCHES * ROWS, steps=steps_of(rounds, kinds)
        )
    Path(folder, f"passed-{rank}.json").write_text(json.dumps(delays.passed_s))


if __name__ == "__main__":
    main()
