"""Ranks for tests: started once, kept alive for many cases, ended with the session. Nothing here can hang.

A case is a module-level function that every rank calls with the same arguments; what it returns must be plain data.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

CASE_LIMIT_S = 60.0
START_LIMIT_S = 60.0
KEPT_RANKS: set[int] = set()  # process ids of all pools, for the guard that looks for processes left behind


class RankError(AssertionError):
    """A rank raised: its own traceback is the message."""


class RankPool:
    """``ranks`` processes in one group, Gloo's unless said otherwise, waiting for cases."""

    def __init__(self, ranks: int, folder: Path, *, backend: str = "gloo") -> None:
        self.ranks, self._folder, self._backend, self._generation = ranks, folder, backend, 0
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []

    def run(self, case: Callable[..., Any], *arguments: Any, limit_s: float = CASE_LIMIT_S, **named: Any) -> list[Any]:
        """Call ``case`` on every rank and return what each returned, by rank.

        Raises:
            RankError: With the first rank's own traceback, or the ranks that did not answer in time.
        """
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            pipe.send((case, arguments, named))
        return self._collect(limit_s)

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()  # the worker's recv ends, and with it the worker
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
            KEPT_RANKS.discard(process.pid or 0)
        self._processes, self._pipes = [], []

    def _start(self) -> None:
        self._generation += 1
        context = multiprocessing.get_context("spawn")
        store = self._folder / f"store-{self.ranks}-{self._generation}"
        for rank in range(self.ranks):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.ranks, str(store), self._backend, theirs), daemon=True)
            process.start()
            KEPT_RANKS.add(process.pid or 0)
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._collect(START_LIMIT_S)

    def _collect(self, limit_s: float) -> list[Any]:
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        waiting = dict(zip(self._pipes, range(self.ranks), strict=True))
        while waiting:
            ready = wait(list(waiting), timeout=limit_s if not failures else 3.0)
            if not ready:
                break
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type]
                try:
                    fine, answer = pipe.recv()  # type: ignore[union-attr]
                except EOFError:
                    fine, answer = False, f"rank {rank} died with exit code {self._processes[rank].exitcode}"
                (answers if fine else failures)[rank] = answer
        if failures or waiting:
            self.close()  # peers of a failed rank may be stuck: begin anew
            first = next(iter(failures.values()), f"ranks {sorted(waiting.values())} did not answer within {limit_s:.0f} s")
            raise RankError(first)
        return [answers[rank] for rank in range(self.ranks)]


def _serve(rank: int, ranks: int, store: str, backend: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group(backend, store=dist.FileStore(store, ranks), rank=rank, world_size=ranks, timeout=timedelta(seconds=50))
    pipe.send((True, None))
    while True:
        try:
            case, arguments, named = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, case(*arguments, **named)))
        except BaseException:
            pipe.send((False, f"rank {rank}:\n{traceback.format_exc()}"))
