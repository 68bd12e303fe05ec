"""The sides of benchmarks/step_sides.py in turns: all jobs are live at once, and one of them at a time trains a block of steps.

The turns of a round follow right after each other, so that what the machine does in between hits all sides alike.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.blocks import Conductor
from benchmarks.paired import shuffled_rounds
from benchmarks.ranks import Ranks
from benchmarks.report import tell
from benchmarks.step_sides import Work, as_argument
from pptoolkit.errors import ConfigError, TrainingError

_START_LIMIT_S = 240.0
_DEEPSPEED_MISSING = """\
DeepSpeed: not installed, skipped. To compare with it, give it an environment of its own:
  python -m venv ds && ds/bin/pip install torch==2.13.0 numpy setuptools wheel
  DS_ACCELERATOR=cpu ds/bin/pip install --no-build-isolation deepspeed==0.19.8
  python -m benchmarks.{benchmark} --deepspeed-python ds/bin/python"""


def add_deepspeed_option(parser: argparse.ArgumentParser) -> None:
    """Let the user say which interpreter has DeepSpeed."""
    parser.add_argument("--deepspeed-python", default=sys.executable, metavar="PATH", help="interpreter in which DeepSpeed is installed")


def has_deepspeed(python: str, *, benchmark: str) -> bool:
    """Return whether DeepSpeed is installed for ``python``; say how to get it if not.

    Raises:
        ConfigError: If there is no such interpreter.
    """
    try:
        found = subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('deepspeed') is None)"], timeout=60)
    except OSError as error:
        raise ConfigError(
            f"--deepspeed-python {python} cannot be started: {error.strerror}; give the path of a Python interpreter"
        ) from error
    if found.returncode:
        tell(_DEEPSPEED_MISSING.format(benchmark=benchmark))
    return found.returncode == 0


def measure_in_turns(pythons: Mapping[str, str], work: Work, *, ranks: int, seed: int) -> dict[str, list[float]]:
    """Return for each side its seconds per step in every round; the sides of a round ran right after each other.

    Args:
        pythons: The interpreter of each side.
        work: What each of them trains.
        ranks: Of each of them.
        seed: Of the order in each round.

    Raises:
        TrainingError: If a rank fails or a time is over, or if the sides did not train the same model.
    """
    times: dict[str, list[float]] = {side: [] for side in pythons}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pptoolkit-turns-")))
        conductor = stack.enter_context(Conductor(folder))
        tell(f"{ranks} ranks: starting {', '.join(pythons)}")
        for side, python in pythons.items():
            arguments = ["--side", side, "--address", str(conductor.address), "--work", as_argument(work)]
            environment = {"DS_ACCELERATOR": "cpu"}
            conductor.add(
                Ranks("benchmarks.step_sides", arguments, ranks=ranks, folder=folder / side, python=python, environment=environment)
            )
        conductor.gather(ranks=ranks, limit_s=_START_LIMIT_S)
        limit_s = 60 + 20 * work.ideal_step_s(ranks) * (work.block_steps + 1)
        for number, order in enumerate(shuffled_rounds(list(pythons), work.rounds, seed=seed), start=1):
            for side in order:
                times[side].append(conductor.run(side, steps=work.block_steps, limit_s=limit_s))
            tell(f"round {number}/{work.rounds}  " + "  ".join(f"{side} {values[-1] * 1e3:.1f} ms" for side, values in times.items()))
        facts = {side: conductor.end(side, limit_s=limit_s) for side in pythons}
    losses = {side: told[-1]["loss"] for side, told in facts.items()}
    tell("last loss: " + "  ".join(f"{side} {loss:.7f}" for side, loss in losses.items()))
    check_same_training(losses)
    return times


def check_same_training(losses: Mapping[str, float]) -> None:
    """A side that trains something else is no opponent.

    Raises:
        TrainingError: If a side's last loss is not that of the first one.
    """
    first, expected = next(iter(losses.items()))
    for side, loss in losses.items():
        if not abs(loss - expected) <= 1e-4 * abs(expected):
            raise TrainingError(
                f"{side} ended with loss {loss:.7f} and {first} with {expected:.7f}: the sides did not train the same model"
            )
