"""The job of benchmarks/accounting.py, started by torchrun: two stages that sleep, and a delay in one place at a time.

accounting_job.py FOLDER ROUNDS KIND,KIND,...
"""

import json
import os
import subprocess
import sys
import time
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
    """Knows, on each rank, which step it is and what is delayed in it."""

    def __init__(self, kinds: list[str]) -> None:
        self._kinds, self.step, self.kind = kinds, -1, NONE
        self.slept_s: dict[str, list[float]] = {part: [] for part in PARTS}  # by part, one a step: what really passed there

    def next_step(self) -> None:
        self.step += 1
        self.kind = kind_of(self.step, self._kinds)
        for seconds in self.slept_s.values():
            seconds.append(0.0)

    def sleep(self, part: str, seconds: float) -> None:
        """Sleep as part of ``part``; a busy machine sleeps longer than told, and that is known afterwards."""
        began = time.perf_counter()
        sleep_precisely(seconds)
        if self.step >= 0:
            self.slept_s[part][-1] += time.perf_counter() - began


class Layer(nn.Module):
    """A vector that scales, with sleeps of known length on both ways; stage 1 (its first layer) may be delayed."""

    def __init__(self, delays: Delays, delayed: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self._delays, self._delayed = delays, delayed

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Sleep.apply(x * self.weight, self)
        return result

    def sleep(self, kind: str) -> None:
        self._delays.sleep("compute", _OWN_S + (DELAY_S / MICRO_BATCHES if self._delayed and self._delays.kind == kind else 0.0))


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer) -> Tensor:
        ctx.layer = layer
        if type(x) is Tensor:  # not while shapes are inferred
            layer.sleep(FORWARD)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.sleep(BACKWARD)
        return gradient, None


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
        if self._rank == 0:
            if LINK in (before, self._delays.kind) and before != self._delays.kind:
                self._limit(self._delays.kind == LINK)
            if self._delays.kind == DATA:
                self._delays.sleep("data", DELAY_S)
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
        if self._rank == 1 and self._delays.kind == OPTIMIZER:
            self._delays.sleep("optimizer", DELAY_S)
        return super().step(closure)


def main() -> None:
    folder, rounds, kinds = sys.argv[1], int(sys.argv[2]), sys.argv[3].split(",")
    rank, delays = int(os.environ["RANK"]), Delays(kinds)
    with pp.Trainer(
        [pp.Layer(f"layer{i}", Layer, delays, i == 1) for i in range(2)],
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: Optimizer(parameters, delays, rank),
        plan=pp.Plan(cuts=(1,), micro_batches=MICRO_BATCHES),
        run=f"{folder}/run",
        telemetry=pp.TelemetrySettings(port=None),
        progress=False,
    ) as trainer:
        trainer.fit(
            Data(delays, rank, os.environ.get("GLOO_SOCKET_IFNAME", "")), batch_size=MICRO_BATCHES * ROWS, steps=steps_of(rounds, kinds)
        )
    Path(folder, f"slept-{rank}.json").write_text(json.dumps(delays.slept_s))


if __name__ == "__main__":
    main()
