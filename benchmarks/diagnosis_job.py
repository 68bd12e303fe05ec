"""The ranks of benchmarks/diagnosis.py: many short trainings on sleeping layers, one after the other in one group.

Each case leaves a run directory behind. A layer that sleeps knows when it asked to be woken:
where the machine woke it late, the run shows a fault that nobody put in. Such a case is run again, and in the end said to be disturbed.
"""

import json
import queue
import random
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import pptoolkit as pp
from benchmarks.cases import take_cases
from pptoolkit.engine.process_group import World
from pptoolkit.engine.routes import Route
from pptoolkit.models import sleeping
from pptoolkit.models.mlp import squared_error
from pptoolkit.models.sleeping import SleepingLayer, sleep_precisely
from pptoolkit.telemetry import Op
from pptoolkit.telemetry.settings import TelemetrySettings

WIDTH, MICRO_BATCHES = 8, 8
TRIES = 3
LATE_RATIO, LATEST_S = 0.02, 0.02  # of the time asked for, over a case; and in one single sleep
DISTURBED = "disturbed.json"


class Alarm:
    """Sleeps for the layers, and notes how late it was woken."""

    def __init__(self) -> None:
        self.asked_s = self.late_s = self.latest_s = 0.0

    def __call__(self, seconds: float) -> None:
        begin = time.perf_counter()
        sleep_precisely(seconds)
        late = time.perf_counter() - begin - seconds
        self.asked_s, self.late_s, self.latest_s = self.asked_s + seconds, self.late_s + late, max(self.latest_s, late)

    def worst_of_all_ranks(self) -> dict[str, float]:
        """Return how late the rank was that was woken latest; every rank calls it together."""
        worst = torch.tensor([self.late_s / max(self.asked_s, 1e-9), self.latest_s], dtype=torch.float64)
        dist.all_reduce(worst, dist.ReduceOp.MAX)
        return dict(zip(("late_ratio", "latest_s"), worst.tolist(), strict=True))


class FaultyLayer(SleepingLayer):
    """A sleeping layer whose forward varies by ``jitter`` (sigma of a log-normal factor), or pauses every ``pause_every``-th time."""

    def __init__(self, forward_s: float, backward_s: float, *, jitter: float = 0.0, pause_s: float = 0.0, pause_every: int = 0) -> None:
        super().__init__(WIDTH, forward_s, backward_s)
        self._usual_s, self._jitter, self._pause_s, self._pause_every = forward_s, jitter, pause_s, pause_every
        self._draw, self._calls = random.Random(1), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if type(x) is torch.Tensor and not x.is_meta:
            self._calls += 1
            self.forward_s = self._usual_s * self._draw.lognormvariate(0.0, self._jitter)
            if self._pause_every and self._calls % self._pause_every == 0:
                self.forward_s += self._pause_s
        return super().forward(x)


class SlowData:
    """A data set whose batches take their time on one rank."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self._x)

    def batch(self, indices: Any) -> tuple[torch.Tensor, torch.Tensor]:
        sleep_precisely(self._seconds)
        chosen = self._x[torch.as_tensor(list(indices))]
        return chosen, chosen.cos()


class StallingSGD(torch.optim.SGD):
    """SGD that saves a checkpoint, as far as time goes, in one step."""

    def __init__(self, parameters: Iterable[nn.Parameter], at: int, seconds: float, saving: Any) -> None:
        super().__init__(parameters, lr=1e-3)
        self._at, self._seconds, self._saving, self._step = at, seconds, saving, 0

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self._step == self._at:
            with self._saving():
                time.sleep(self._seconds)
        self._step += 1
        super().step(closure)


class SlowLink:
    """The way to one rank, taken later than asked, in order, by a thread: what a slow wire looks like to both ends."""

    def __init__(self, route: Route, seconds: float) -> None:
        self._group, self._seconds, self.messages = route.group, seconds, 0
        self._queue: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        self.messages += 1
        message = _Message()
        self._queue.put((message, tensors, peer, tag))
        return message

    def _serve(self) -> None:
        while True:
            message, tensors, peer, tag = self._queue.get()
            time.sleep(self._seconds)
            message.work = self._group.send(tensors, peer, tag)
            message.sent.set()


class _Message:
    def __init__(self) -> None:
        self.sent, self.work = threading.Event(), None

    def wait(self) -> bool:
        self.sent.wait()
        assert self.work is not None
        self.work.wait()
        return True


def take(case: dict[str, Any], runs: Path, world: World) -> None:
    """Train one case, again where the machine disturbed it."""
    for _ in range(TRIES):
        if train_watched(case, runs, world.rank):
            break


def train_watched(case: dict[str, Any], runs: Path, rank: int) -> bool:
    """Train one case; return whether the machine woke every rank in time, and leave a note in the run where it did not."""
    if rank == 0:
        shutil.rmtree(runs / case["name"], ignore_errors=True)
    dist.barrier()
    sleeping.sleep_precisely = alarm = Alarm()
    train(case, runs, rank)
    worst = alarm.worst_of_all_ranks()
    fine = worst["late_ratio"] <= LATE_RATIO and worst["latest_s"] <= LATEST_S
    if rank == 0 and not fine:
        (runs / case["name"] / DISTURBED).write_text(json.dumps(worst))
    dist.barrier()
    return fine


def train(case: dict[str, Any], runs: Path, rank: int) -> None:
    """Train one case: {name, forward_s, backward_s, cuts, steps, fault: {kind, rank, ...}}."""
    fault = case.get("fault", {})
    layers = [
        pp.Layer(f"sleep{i:02d}", FaultyLayer, f, b, **_own_fault(case, fault, i))
        for i, (f, b) in enumerate(zip(case["forward_s"], case["backward_s"], strict=True))
    ]
    settings = TelemetrySettings(port=None)
    plan = pp.Plan(cuts=tuple(case["cuts"]), schedule=case.get("schedule", "1f1b"), micro_batches=MICRO_BATCHES)
    saving: list[Any] = []

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        stalls = fault.get("kind") == "checkpoint" and fault["rank"] == rank
        return StallingSGD(parameters, fault.get("step", 0) if stalls else -1, fault.get("seconds", 0.0), lambda: saving[0]())

    trainer = pp.Trainer(
        layers, loss=squared_error, optimizer=optimizer, plan=plan, run=runs / case["name"], telemetry=settings, progress=False
    )
    link: SlowLink | None = None
    if fault.get("kind") == "link" and fault["rank"] == rank:
        # There is no wire to slow down between processes of one machine: the training's own way out is.
        ways = [m for m in trainer.pipeline._train._messages._sends if m.peer == fault["target"]]
        link = SlowLink(ways[0].route, fault["seconds"])
        for message in ways:
            message.route = message.route._replace(group=link)
    saving.append(lambda: trainer.telemetry.recorder.span(Op.CHECKPOINT))
    slow = fault.get("kind") == "loader" and fault["rank"] == rank
    with trainer:
        trainer.fit(SlowData(fault["seconds"] if slow else 0.0), batch_size=2 * MICRO_BATCHES, steps=case["steps"])
    assert link is None or link.messages, "the engine sends by another way than its routes, so the slow link slows nothing"


def _own_fault(case: dict[str, Any], fault: dict[str, Any], layer: int) -> dict[str, Any]:
    """Return what a layer's own fault is: only on the first layer of the stage that has one."""
    edges = [0, *case["cuts"], len(case["forward_s"])]
    if fault.get("kind") == "jitter" and edges[fault["rank"]] <= layer < edges[fault["rank"] + 1]:
        return {"jitter": fault["sigma"]}
    if fault.get("kind") == "pause" and layer == edges[fault["rank"]]:
        return {"pause_s": fault["seconds"], "pause_every": fault["every"]}
    return {}


if __name__ == "__main__":
    take_cases(take)
