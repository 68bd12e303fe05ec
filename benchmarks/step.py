"""A training step of ours against torch's own 1F1B and DeepSpeed's pipeline engine, on the same sleeping layers.

Layers that sleep take exactly known times and no processor, so that the ideal step is known too, and more ranks than cores can
be timed. What differs between the sides is what they add: communication, waiting, Python.

Ours must never be slower. Of two sides that are equally fast, no interval's upper end lies below 1, so it is held against half a
percent more: what telemetry, which is on in ours alone, may cost by benchmarks/overhead.py.
"""

import sys
from collections.abc import Sequence

from benchmarks.paired import location, ratio
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from benchmarks.step_sides import DEEPSPEED, OURS, TORCH, Work
from benchmarks.turns import add_deepspeed_option, has_deepspeed, measure_in_turns
from pptoolkit.errors import ConfigError, PPToolkitError

GOAL = 1.005


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4], choices=[2, 4, 8], help="numbers of ranks (default 2 4)")
    parser.add_argument("--rounds", type=int, help="blocks of each side, at least 6 (default 20; 6 with --quick)")
    parser.add_argument("--steps", type=int, help="measured steps in a block (default 4; 1 with --quick)")
    add_deepspeed_option(parser)
    options = parser.parse_args()
    rounds = options.rounds or (6 if options.quick else 20)
    steps = options.steps or (1 if options.quick else 4)
    try:
        if rounds < 6:
            raise ConfigError(f"--rounds {rounds} is too few for a 95 % interval; use 6 or more")
        pythons = {OURS: sys.executable, TORCH: sys.executable}
        if has_deepspeed(options.deepspeed_python, benchmark="step"):
            pythons[DEEPSPEED] = options.deepspeed_python
        tell(describe_machine())
        results: list[Result] = []
        for ranks in options.ranks:
            work = _work(quick=options.quick, rounds=rounds, block_steps=steps)
            times = measure_in_turns(pythons, work, ranks=ranks, seed=options.seed)
            results += _results(times, work.ideal_step_s(ranks), ranks=ranks)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _work(*, quick: bool, rounds: int, block_steps: int) -> Work:
    """Return layers of 5 ms forward and 10 ms backward; half of that when time is short, which makes our own time weigh double."""
    if quick:
        return Work(forward_s=0.0025, backward_s=0.005, rounds=rounds, block_steps=block_steps)
    return Work(rounds=rounds, block_steps=block_steps)


def _results(times: dict[str, list[float]], ideal_s: float, *, ranks: int) -> list[Result]:
    results = [_over_ideal(side, values, ideal_s, ranks) for side, values in times.items()]
    for side, values in times.items():
        if side != OURS:
            results.append(at_most(f"{ranks} ranks: {OURS} / {side}", ratio(times[OURS], values), "", goal=GOAL))
    return results


def _over_ideal(side: str, values: Sequence[float], ideal_s: float, ranks: int) -> Result:
    name = f"{ranks} ranks: {side} / ideal step of {ideal_s * 1e3:.0f} ms"
    return measured(name, location(values).scaled(1 / ideal_s), "")


if __name__ == "__main__":
    sys.exit(main())
