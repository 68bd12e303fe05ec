"""Many cases in one job: the ranks start once and take one case after the other from a file."""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.ranks import run_as_rank, run_ranks
from pptoolkit.engine.process_group import World, join, leave

LIMIT_S = 3600.0
_CASES = "cases.jsonl"
Case = dict[str, Any]


def run_cases(program: str, cases: Sequence[Case], *, ranks: int, folder: Path) -> Path:
    """Have ``program``, which calls :func:`take_cases`, take all ``cases``; return the folder of their runs.

    Raises:
        TrainingError: If a rank fails, or the job takes longer than an hour.
    """
    runs = folder / "runs"
    runs.mkdir(parents=True)
    (folder / _CASES).write_text("\n".join(json.dumps(case) for case in cases))
    run_ranks(program, [], ranks=ranks, folder=folder, limit_s=LIMIT_S)
    return runs


def take_cases(take: Callable[[Case, Path, World], None]) -> None:
    """Be a rank of :func:`run_cases`: call ``take`` with each case, the folder of the runs and this rank's place."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    folder: Path = parser.parse_args().folder

    def work() -> None:
        world = join()
        for line in (folder / _CASES).read_text().splitlines():
            take(json.loads(line), folder / "runs", world)
        leave(world)

    run_as_rank(folder, work)
