"""What telemetry costs: a training step with telemetry on against one with it off, alternating within one job.

"On" is all that users get by default: events, layer sampling in every step, event files, metrics endpoint, heartbeat, hardware
sampler. "Off" starts none of it. Both train in the same processes, one block after the other, in random order.
"""

import json
import sys
import tempfile
from pathlib import Path

from benchmarks.overhead_ranks import OFF, ON, RESULT, WORKLOADS
from benchmarks.paired import location, ratio
from benchmarks.ranks import run_ranks
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from pptoolkit.errors import ConfigError, PPToolkitError

GOAL_PERCENT = 1.0
_RANKS = 2


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS), help="default: all")
    parser.add_argument("--pairs", type=int, help="blocks with and without telemetry, at least 6 (default 30; 6 with --quick)")
    parser.add_argument("--steps", type=int, help="measured steps in a block (default 25; 12 with --quick)")
    options = parser.parse_args()
    pairs = options.pairs or (6 if options.quick else 30)
    steps = options.steps or (12 if options.quick else 25)
    try:
        if pairs < 6:
            raise ConfigError(f"--pairs {pairs} is too few for a 95 % interval; use 6 or more")
        tell(describe_machine())
        results: list[Result] = []
        for workload in options.workloads:
            results += _measure(workload, pairs=pairs, steps=steps, seed=options.seed)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _measure(workload: str, *, pairs: int, steps: int, seed: int) -> list[Result]:
    tell(f"{workload}: {pairs} pairs of blocks of {steps} steps on {_RANKS} ranks")
    with tempfile.TemporaryDirectory(prefix="pptoolkit-overhead-") as name:
        folder = Path(name) / workload
        arguments = ["--workload", workload, "--pairs", str(pairs), "--steps", str(steps), "--seed", str(seed)]
        # A step takes a tenth of a second; the limit allows for a machine that is busy with other things.
        run_ranks("benchmarks.overhead_ranks", arguments, ranks=_RANKS, folder=folder, limit_s=240 + 2 * pairs * (5 + steps))
        found = json.loads((folder / RESULT).read_text())
    on, off, micro_batch_s = found[ON], found[OFF], found["micro_batch_s"]
    overhead = ratio(on, off).shifted(-1).scaled(100)
    return [
        at_most(f"{workload}: telemetry's share of the step", overhead, "%", goal=GOAL_PERCENT),
        measured(f"{workload}: step without telemetry", location(off).scaled(1e3), "ms"),
        measured(f"{workload}: micro-batch (forward and backward of a stage)", location(micro_batch_s).scaled(1e3), "ms"),
    ]


if __name__ == "__main__":
    sys.exit(main())
