"""The step time of each schedule on 4 ranks against what the simulator says of it, fed with the run's own op times.

Layers that sleep take known times and no processor, so that 4 ranks can be timed on few cores; how long their backward takes for the input
and for the weights is known too, so that a schedule that splits it has something to gain. For each schedule a job is trained as users do,
telemetry on, and read back with :class:`pptoolkit.Run`. The simulator gets what the ops of a step took, its messages and what its ranks did
around their actions, and its step is held against the measured one. Beside it: the same from the medians of all steps, which is what
plans are predicted from, and which knows of no single late op; and the step in which nothing but the layers takes time.

Each run is one measurement; the schedules take turns, in random order, and the value is the centre of all runs' differences.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.paired import location
from benchmarks.ranks import run_ranks
from benchmarks.report import Result, argument_parser, describe_machine, fail, measured, show, tell, within
from benchmarks.schedule_ranks import RESULT, Outcome, Work
from pptoolkit.errors import ConfigError, PPToolkitError
from pptoolkit.schedule import TRAINING_SCHEDULES

GOAL_PERCENT = 5.0
RANKS = 4
NAMES = TRAINING_SCHEDULES


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--schedules", nargs="+", choices=NAMES, default=list(NAMES), metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, help="runs of each schedule, at least 6 (default 10; 6 with --quick)")
    parser.add_argument("--steps", type=int, help="steps of a run, at least 3 (default 12; 3 with --quick)")
    options = parser.parse_args()
    rounds = options.rounds or (6 if options.quick else 10)
    steps = options.steps or (3 if options.quick else 12)
    try:
        if rounds < 6 or steps < 3:
            raise ConfigError(f"--rounds {rounds} --steps {steps} are too few; use at least 6 rounds for a 95 % interval, and 3 steps")
        tell(describe_machine())
        work = Work(forward_s=0.003) if options.quick else Work()
        results = results_of(_measure(options.schedules, work, rounds=rounds, steps=steps, seed=options.seed))
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _measure(schedules: Sequence[str], work: Work, *, rounds: int, steps: int, seed: int) -> dict[str, list[Outcome]]:
    tell(f"{rounds} rounds of {', '.join(schedules)}, {steps} steps each, on {RANKS} ranks")
    with tempfile.TemporaryDirectory(prefix="pptoolkit-schedules-") as name:
        folder = Path(name) / "schedules"
        arguments = [
            "--rounds",
            str(rounds),
            "--steps",
            str(steps),
            "--seed",
            str(seed),
            "--work",
            work.as_argument(),
            "--schedules",
            *schedules,
        ]
        limit_s = 240 + rounds * len(schedules) * (10 + 5 * steps * work.compute_s)
        run_ranks("benchmarks.schedule_ranks", arguments, ranks=RANKS, folder=folder, limit_s=limit_s)
        found = json.loads((folder / RESULT).read_text())
    return {schedule: [Outcome(**outcome) for outcome in outcomes] for schedule, outcomes in found.items()}


def results_of(found: Mapping[str, Sequence[Outcome]]) -> list[Result]:
    """Return, for each schedule, by how much the simulated step misses the measured one, and the latter over the ideal step."""
    results = []
    for schedule, outcomes in found.items():
        own = location([100 * o.own_times_error for o in outcomes])
        results.append(within(f"{schedule}: simulated less measured step, own op times", own, "%", goal=GOAL_PERCENT))
        results.append(measured("  from the medians of the ops", location([100 * o.medians_error for o in outcomes]), "%"))
        over = location([o.measured_s / o.ideal_s for o in outcomes])
        results.append(measured(f"  measured / ideal step of {outcomes[0].ideal_s * 1e3:.0f} ms", over, ""))
    return results


if __name__ == "__main__":
    sys.exit(main())
