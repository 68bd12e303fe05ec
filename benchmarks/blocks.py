"""Blocks of steps on command: several jobs live at once, one of them trains, the others are halted.

The benchmark's process is the conductor. Every rank of every job calls :meth:`Gate.step` at the beginning of each step; inside a
block that only notes the time, between blocks it waits there for the next command. So each side trains with its own ordinary
loop, and all of what it does from one step to the next is in the measurement:

    conductor:  run 3 -->                                        --> times
    rank:       gate | warm-up step | step | step | step | gate waits, the process is halted
                     ^ times[0]     ^ [1]  ^ [2]  ^ [3]  ^ [4]
"""

import json
import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.ranks import Ranks
from pptoolkit.errors import TrainingError


class Gate:
    """The rank's side.

    Args:
        address: The conductor's socket.
        job: Name of the job that this rank belongs to.
        rank: This rank.
    """

    def __init__(self, address: Path, *, job: str, rank: int) -> None:
        self._address, self._hello = address, {"job": job, "rank": rank, "pid": os.getpid()}
        self._file: Any = None
        self._times_ns: list[int] = []
        self._left: int | None = None  # steps that still begin in this block; None: no more blocks

    def step(self) -> None:
        """Call at the beginning of every step."""
        if self._file is None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(str(self._address))
            self._file = connection.makefile("rw")
            self._say(self._hello)  # only now: whoever stands at the gate has set up everything
            self._await_block()
        elif self._left is not None:
            self._times_ns.append(time.monotonic_ns())
            self._left -= 1
            if self._left == 0:
                self._say({"times_ns": self._times_ns})
                self._await_block()

    def finish(self, **facts: Any) -> None:
        """Hand over what is to be told about the whole training."""
        self._say(facts)

    def _await_block(self) -> None:
        line = self._file.readline()
        if not line:
            raise TrainingError("the benchmark's own process is gone")
        steps = json.loads(line)["steps"]
        self._left = steps + 1 if steps else None
        self._times_ns = [time.monotonic_ns()]

    def _say(self, message: dict[str, Any]) -> None:
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()


@dataclass(frozen=True, slots=True)
class _Line:
    """The line to one rank."""

    connection: socket.socket
    file: Any
    pid: int


class Conductor:
    """The benchmark's side: lets one job at a time run a block of steps.

    Args:
        folder: Where the socket is made.
    """

    def __init__(self, folder: Path) -> None:
        self.address = folder / "conductor"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.address))
        self._listener.listen(64)
        self._jobs: dict[str, Ranks] = {}
        self._lines: dict[str, dict[int, _Line]] = {}

    def add(self, job: Ranks) -> None:
        """Take a job that has been started; it is ended when the conductor leaves."""
        self._jobs[job.name], self._lines[job.name] = job, {}

    def gather(self, *, ranks: int, limit_s: float) -> None:
        """Wait until all ranks of all jobs stand at the gate, and halt them there.

        Raises:
            TrainingError: If one fails, or the time is over.
        """
        end = time.monotonic() + limit_s
        self._listener.settimeout(0.2)
        while missing := [name for name, lines in self._lines.items() if len(lines) < ranks]:
            for job in self._jobs.values():
                job.check()
            if time.monotonic() > end:
                raise self._jobs[missing[0]].failure(f"was not ready within {limit_s:.0f} s")
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            connection.settimeout(limit_s)
            file = connection.makefile("rw")
            hello = json.loads(file.readline())
            lines = self._lines[hello["job"]]
            lines[hello["rank"]] = _Line(connection, file, hello["pid"])
            if len(lines) == ranks:
                self._halt(hello["job"])

    def run(self, name: str, *, steps: int, limit_s: float) -> float:
        """Let a job run one unmeasured and then ``steps`` measured steps; return the seconds per measured step.

        Raises:
            TrainingError: If a rank fails, or the time is over.
        """
        self._command(name, steps)
        times_ns = [answer["times_ns"] for answer in self._answers(name, limit_s)]
        self._halt(name)
        return seconds_per_step(times_ns)

    def end(self, name: str, *, limit_s: float) -> list[dict[str, Any]]:
        """Let a job finish; return what its ranks have to tell, by rank."""
        self._command(name, 0)
        facts = self._answers(name, limit_s)
        self._jobs[name].wait(limit_s=limit_s)
        return facts

    def __enter__(self) -> "Conductor":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, job in self._jobs.items():
            job.stop([line.pid for line in self._lines[name].values()])
        self._listener.close()
        self.address.unlink()

    def _command(self, name: str, steps: int) -> None:
        self._signal(name, signal.SIGCONT)
        for line in self._lines[name].values():
            line.file.write(json.dumps({"steps": steps}) + "\n")
            line.file.flush()

    def _answers(self, name: str, limit_s: float) -> list[dict[str, Any]]:
        answers = []
        for _, line in sorted(self._lines[name].items()):
            line.connection.settimeout(limit_s)
            try:
                text = line.file.readline()
            except TimeoutError:
                raise self._jobs[name].failure(f"did not end its block within {limit_s:.0f} s") from None
            if not text:
                raise self._jobs[name].failure("failed")
            answers.append(json.loads(text))
        return answers

    def _halt(self, name: str) -> None:
        """Not even a background thread of a side that is not measured may take time from the one that is."""
        self._signal(name, signal.SIGSTOP)

    def _signal(self, name: str, number: signal.Signals) -> None:
        for line in self._lines[name].values():
            with suppress(ProcessLookupError):  # its end of the line is closed then, which says more
                os.kill(line.pid, number)


def seconds_per_step(times_ns: Sequence[Sequence[int]]) -> float:
    """Return the time per step of a block, from when each rank began its steps (and, last, was done); the first is left out.

    A step of the pipeline is over when its last rank is done with it.
    """
    over = [max(moment) for moment in zip(*times_ns, strict=True)]
    return float((over[-1] - over[1]) / 1e9 / (len(over) - 2))
