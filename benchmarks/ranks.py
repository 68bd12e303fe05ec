"""Starting the ranks of a benchmark with torchrun, within a time limit, and saying what the first failing rank itself said."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pptoolkit.errors import TrainingError
from pptoolkit.failure import RankFailure, read_failures, write_failure

ROOT = Path(__file__).parent.parent
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_TAIL_LINES = 12


class Ranks:
    """The running ranks of one torchrun job, each writing to a log of its own.

    Args:
        program: Module to run as ``python -m``; it calls :func:`run_as_rank`.
        arguments: The program's arguments.
        ranks: Number of processes.
        folder: Where logs and failures go; one per job.
        python: Interpreter of the ranks.
        environment: Added to the environment.
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        ranks: int,
        folder: Path,
        python: str = sys.executable,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.name, self.folder = folder.name, folder
        folder.mkdir(parents=True, exist_ok=True)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", str(ranks)]
        logs = ["--log-dir", str(folder / "logs"), "--redirects", "3"]
        self._process = subprocess.Popen(
            [python, *torchrun, *logs, "-m", program, "--folder", str(folder), *arguments],
            cwd=ROOT,
            env={**os.environ, **_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(folder / "torchrun.log").open("wb"),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )

    def check(self) -> None:
        """Raise if the job has failed.

        Raises:
            TrainingError: Naming the first rank that failed, and what it said.
        """
        if self._process.poll() not in (None, 0) or self._told():
            raise self.failure("failed")

    def wait(self, *, limit_s: float) -> None:
        """Wait until all ranks have ended well.

        Raises:
            TrainingError: If one fails, or the time is over.
        """
        end = time.monotonic() + limit_s
        while self._process.poll() is None:
            self.check()
            if time.monotonic() > end:
                raise self.failure(f"did not end within {limit_s:.0f} s")
            time.sleep(0.05)
        self.check()

    def stop(self, pids: Iterable[int] = ()) -> None:
        """End the job. torchrun ends its ranks when asked, and they die with it when it has to be killed.

        Args:
            pids: Ranks that were halted with SIGSTOP, which would not hear of it.
        """
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def failure(self, what: str) -> TrainingError:
        """Return an error that says ``what`` happened to the job and what its ranks left behind."""
        settle = time.monotonic() + 2.0  # the first to be seen may be the victim of one that is still writing its own
        while not any(not f.victim for f in self._told()) and time.monotonic() < settle:
            time.sleep(0.1)
        told = self._told()
        if told:
            return TrainingError(f"{self.name} {what}; rank {told[0].rank} said:\n{told[0].trace.strip()}")
        return TrainingError(f"{self.name} {what}; {self._last_lines()}")

    def _told(self) -> list[RankFailure]:
        return read_failures(self.folder / "failures")

    def _last_lines(self) -> str:
        logs = sorted(self.folder.glob("logs/**/stderr.log"), key=lambda p: p.stat().st_mtime)
        for log in [*(log for log in logs if log.stat().st_size), self.folder / "torchrun.log"]:
            lines = log.read_text(errors="replace").strip().splitlines()
            if lines:
                tail = "\n".join(lines[-_TAIL_LINES:])
                return f"the end of {log.relative_to(self.folder)}:\n{tail}"
        return "no rank wrote anything"


def run_ranks(
    program: str, arguments: Sequence[str], *, ranks: int, folder: Path, limit_s: float, environment: dict[str, str] | None = None
) -> None:
    """Start a job, wait for its end, and leave no process behind.

    Raises:
        TrainingError: If a rank fails, or the job takes longer than ``limit_s``.
    """
    job = Ranks(program, arguments, ranks=ranks, folder=folder, environment=environment)
    try:
        job.wait(limit_s=limit_s)
    finally:
        job.stop()


def run_as_rank(folder: Path, work: Callable[[], None]) -> None:
    """Do ``work`` as one rank of :class:`Ranks`; an error is left in ``folder`` for the process that started us."""
    die_with_parent()
    try:
        work()
    except BaseException as error:
        write_failure(folder / "failures", RankFailure.of(error, rank=int(os.environ["RANK"])))
        raise


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone, even while it is halted. Linux only."""
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def _environment() -> dict[str, str]:
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    # One thread a rank: more ranks than cores is the rule here, and their threads would fight each other.
    return {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TORCH_CPP_LOG_LEVEL": "ERROR"}
