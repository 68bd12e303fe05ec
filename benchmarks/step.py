"""A training step of ours against torch's own 1F1B and DeepSpeed's pipeline engine, on the same sleeping layers.

Layers that sleep take exactly known times and no processor, so that the ideal step is known too, and more ranks than cores can
be timed. What differs between the sides is what they add: communication, waiting, Python.
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.blocks import Conductor
from benchmarks.paired import location, ratio, shuffled_rounds
from benchmarks.ranks import Ranks
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from benchmarks.step_sides import Work, as_argument
from pptoolkit.errors import ConfigError, PPToolkitError, TrainingError

OURS = "pptoolkit"
_START_LIMIT_S = 240.0
_DEEPSPEED_MISSING = """\
DeepSpeed: not installed, skipped. To compare with it, give it an environment of its own:
  python -m venv ds && ds/bin/pip install torch==2.13.0 numpy setuptools wheel
  DS_ACCELERATOR=cpu ds/bin/pip install --no-build-isolation deepspeed==0.19.8
  python -m benchmarks.step --deepspeed-python ds/bin/python"""


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4, 8], help="numbers of ranks (default 2 4)")
    parser.add_argument("--rounds", type=int, help="blocks of each side, at least 6 (default 20; 6 with --quick)")
    parser.add_argument("--steps", type=int, help="measured steps in a block (default 4; 1 with --quick)")
    parser.add_argument("--deepspeed-python", default=sys.executable, metavar="PATH", help="interpreter in which DeepSpeed is installed")
    options = parser.parse_args()
    rounds = options.rounds or (6 if options.quick else 20)
    steps = options.steps or (1 if options.quick else 4)
    try:
        if rounds < 6:
            raise ConfigError(f"--rounds {rounds} is too few for a 95 % interval; use 6 or more")
        pythons = {OURS: sys.executable, "torch": sys.executable}
        if _has_deepspeed(options.deepspeed_python):
            pythons["deepspeed"] = options.deepspeed_python
        else:
            tell(_DEEPSPEED_MISSING)
        tell(describe_machine())
        results: list[Result] = []
        for ranks in options.ranks:
            work = _work(quick=options.quick, steps=rounds * (steps + 1) + 1)
            times = _measure(pythons, work, ranks=ranks, rounds=rounds, steps=steps, seed=options.seed)
            results += _results(times, work.ideal_step_s(ranks), ranks=ranks)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _has_deepspeed(python: str) -> bool:
    try:
        found = subprocess.run([python, "-c", "import importlib.util as u; raise SystemExit(u.find_spec('deepspeed') is None)"], timeout=60)
    except OSError as error:
        raise ConfigError(
            f"--deepspeed-python {python} cannot be started: {error.strerror}; give the path of a Python interpreter"
        ) from error
    return found.returncode == 0


def _work(*, quick: bool, steps: int) -> Work:
    """Return layers of 5 ms forward and 10 ms backward; half of that when time is short, which makes our own time weigh double."""
    return Work(forward_s=0.0025, backward_s=0.005, steps=steps) if quick else Work(steps=steps)


def _measure(pythons: dict[str, str], work: Work, *, ranks: int, rounds: int, steps: int, seed: int) -> dict[str, list[float]]:
    """Return for each side its seconds per step in every round; the sides of a round ran right after each other."""
    times: dict[str, list[float]] = {side: [] for side in pythons}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pptoolkit-step-")))
        conductor = stack.enter_context(Conductor(folder))
        tell(f"{ranks} ranks: starting {', '.join(pythons)}")
        for side, python in pythons.items():
            conductor.add(_start(side, python, work, conductor.address, ranks, folder))
        conductor.gather(ranks=ranks, limit_s=_START_LIMIT_S)
        limit_s = 60 + 20 * work.ideal_step_s(ranks) * (steps + 1)
        for number, order in enumerate(shuffled_rounds(list(pythons), rounds, seed=seed), start=1):
            for side in order:
                times[side].append(conductor.run(side, steps=steps, limit_s=limit_s))
            tell(f"round {number}/{rounds}  " + "  ".join(f"{side} {values[-1] * 1e3:.1f} ms" for side, values in times.items()))
        facts = {side: conductor.end(side, limit_s=limit_s) for side in pythons}
    losses = {side: told[-1]["loss"] for side, told in facts.items()}
    tell("last loss: " + "  ".join(f"{side} {loss:.7f}" for side, loss in losses.items()))
    _check_same_training(losses)
    return times


def _start(side: str, python: str, work: Work, address: Path, ranks: int, folder: Path) -> Ranks:
    arguments = ["--side", side, "--address", str(address), "--work", as_argument(work)]
    environment = {"DS_ACCELERATOR": "cpu"} if side == "deepspeed" else {}
    return Ranks("benchmarks.step_sides", arguments, ranks=ranks, folder=folder / side, python=python, environment=environment)


def _check_same_training(losses: dict[str, float]) -> None:
    """A side that trains something else is no opponent."""
    ours = losses[OURS]
    for side, loss in losses.items():
        if not abs(loss - ours) <= 1e-4 * abs(ours):
            raise TrainingError(f"{side} ended with loss {loss:.7f} and {OURS} with {ours:.7f}: the sides did not train the same model")


def _results(times: dict[str, list[float]], ideal_s: float, *, ranks: int) -> list[Result]:
    results = [_over_ideal(side, values, ideal_s, ranks) for side, values in times.items()]
    for side, values in times.items():
        if side != OURS:
            results.append(at_most(f"{ranks} ranks: {OURS} / {side}", ratio(times[OURS], values), "", goal=1.0))
    return results


def _over_ideal(side: str, values: Sequence[float], ideal_s: float, ranks: int) -> Result:
    name = f"{ranks} ranks: {side} / ideal step of {ideal_s * 1e3:.0f} ms"
    return measured(name, location(values).scaled(1 / ideal_s), "")


if __name__ == "__main__":
    sys.exit(main())
