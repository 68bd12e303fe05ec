"""Small jobs for tests of the command line, and how to run them: every start has a time limit and leaves no process behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

MODEL = '''
import time

import torch
from torch import nn

import pptoolkit as pp


class Slow(nn.Module):
    """A linear layer that takes its time and raises in its n-th real forward."""

    def __init__(self, seconds, fail_at):
        super().__init__()
        self.linear, self.seconds, self.fail_at, self.seen = nn.Linear(8, 8), seconds, fail_at, -1

    def forward(self, x):
        if type(x) is torch.Tensor and not torch._guards.detect_fake_mode([x]):
            self.seen += 1
            if self.seen == self.fail_at:
                raise ValueError("boom")
            time.sleep(self.seconds)
        return torch.tanh(self.linear(x))


def job(seconds=0.004, fail_at=-1):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    layers = [pp.Layer(f"l{i}", Slow, seconds, fail_at if i == 3 else -1) for i in range(4)]
    return pp.Job(layers=layers, loss=nn.functional.mse_loss, dataset=lambda: torch.utils.data.TensorDataset(x, x.cos()))
'''


def write_job(folder: Path, *, steps: int, port: int, fail_at: int = -1, seconds: float = 0.004, extra: str = "") -> Path:
    """Write a job of four slow layers, eight micro-batches of two samples, and its model file; return the config's path."""
    (folder / "slow.py").write_text(MODEL)
    config = folder / "job.toml"
    config.write_text(
        f"""
[model]
kind = "custom"
factory = "slow.py:job"
arguments = {{ seconds = {seconds}, fail_at = {fail_at} }}
[training]
batch_size = 16
steps = {steps}
[plan]
micro_batches = 8
[telemetry]
port = {port}
{extra}
"""
    )
    return config


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    output: str
    seconds: float

    @property
    def last_line(self) -> str:
        return [line for line in self.output.splitlines() if line.strip()][-1]


@contextmanager
def started(folder: Path, *arguments: str, limit_s: float = 60.0) -> Iterator["Started"]:
    """Start ``pptoolkit`` in ``folder``; whatever happens, nothing of it survives the block."""
    environment = {**os.environ, "CI": "true", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    output = folder / f"output-{time.monotonic_ns()}.txt"
    with output.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "pptoolkit", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    command = Started(process, output, limit_s)
    try:
        yield command
    finally:
        for left in [*command.workers(), psutil.Process(process.pid)] if process.poll() is None else command.workers():
            left.kill()
        process.wait()


class Started:
    """A command that runs."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, limit_s: float) -> None:
        self.process, self._output, self._limit_s, self._began = process, output, limit_s, time.monotonic()
        self._workers: dict[int, psutil.Process] = {}

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def workers(self) -> list[psutil.Process]:
        """Return the ranks that this command has started and that still live."""
        try:
            for child in psutil.Process(self.process.pid).children(recursive=True):
                self._workers[child.pid] = child
        except psutil.NoSuchProcess:
            pass
        return [p for p in self._workers.values() if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    def rank(self, rank: int) -> psutil.Process:
        return next(p for p in self.workers() if p.environ().get("RANK") == str(rank))

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds.

        Raises:
            AssertionError: With the output, if the command ends or time runs out before.
        """
        while not condition():
            assert self.process.poll() is None, f"the command has ended:\n{self.output}"
            assert time.monotonic() - self._began < self._limit_s, f"nothing within {self._limit_s:.0f} s:\n{self.output}"
            self.workers()
            time.sleep(0.05)

    def end(self) -> Ended:
        """Wait for the end of the command and of every rank.

        Raises:
            AssertionError: If it takes too long, or a rank outlives the command.
        """
        try:
            code = self.process.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended within {self._limit_s:.0f} s:\n{self.output}") from None
        deadline = time.monotonic() + 5
        while self.workers() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not self.workers(), f"ranks left behind: {self.workers()}"
        return Ended(code, self.output, time.monotonic() - self._began)
