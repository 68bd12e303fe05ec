"""Peak memory of 1F1B with 64 micro-batches against 8 of the same size: ours beside torch.distributed.pipelining's own Schedule1F1B.

1F1B holds the activations of as many micro-batches as there are stages, however many a step has, so a step of 64 should need no more
than one of 8. What may grow is what a runtime keeps for each micro-batch: receive buffers, outputs, records. Counted are all live tensor
bytes of a rank at the peak of a step, parameters and gradients too, but for the batch itself, which is eight times larger whoever trains
it; and beside them the peak resident set of the process, with everything in it (see benchmarks/live_memory.py). Both runtimes train the
same model with the same batch in the same processes, one after the other in random order; the peak of the first step, in which shapes
are inferred, does not count, but what that step leaves allocated does.

Of all ranks the one that grows most is shown.
"""

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live_memory import ENVIRONMENT
from benchmarks.memory_ranks import COUNTS, RESULT, SIDES, label
from benchmarks.paired import location, ratio
from benchmarks.ranks import run_ranks
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from pptoolkit.errors import ConfigError, PPToolkitError

GOAL = 1.05
_MIB = 1 / (1 << 20)


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--ranks", type=int, choices=[2, 4, 8], help="number of ranks (default 4; 2 with --quick)")
    parser.add_argument("--rounds", type=int, help="blocks of each kind, at least 6 (default 12; 6 with --quick)")
    options = parser.parse_args()
    ranks = options.ranks or (2 if options.quick else 4)
    rounds = options.rounds or (6 if options.quick else 12)
    try:
        if rounds < 6:
            raise ConfigError(f"--rounds {rounds} is too few for a 95 % interval; use 6 or more")
        tell(describe_machine())
        results = results_of(_measure(ranks=ranks, rounds=rounds, seed=options.seed), ranks=ranks)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _measure(*, ranks: int, rounds: int, seed: int) -> dict[str, dict[str, list[list[int]]]]:
    tell(f"{rounds} rounds of {', '.join(label(side, count) for side in SIDES for count in COUNTS)} micro-batches on {ranks} ranks")
    with tempfile.TemporaryDirectory(prefix="pptoolkit-memory-") as name:
        folder = Path(name) / "memory"
        arguments = ["--rounds", str(rounds), "--seed", str(seed)]
        run_ranks("benchmarks.memory_ranks", arguments, ranks=ranks, folder=folder, limit_s=240 + 60 * rounds, environment=ENVIRONMENT)
        found: dict[str, dict[str, list[list[int]]]] = json.loads((folder / RESULT).read_text())
    return found


def results_of(found: dict[str, dict[str, list[list[int]]]], *, ranks: int) -> list[Result]:
    """Return what was found, with the goal that is ours.

    Args:
        found: By what is counted ("live", "resident"), then by :func:`~benchmarks.memory_ranks.label`: bytes of each round and rank.
        ranks: Number of ranks.
    """
    results, few, many = [], *COUNTS
    live, resident = found["live"], found["resident"]
    for side in SIDES:
        low, high, rank = _of_the_rank_that_grows_most(live[label(side, few)], live[label(side, many)])
        growth = ratio(high, low)
        name = f"{ranks} ranks: {side}, live tensor bytes of {many} micro-batches / of {few}"
        results.append(at_most(name, growth, "", goal=GOAL) if side == SIDES[0] else measured(name, growth, ""))
        for count, values in ((few, low), (many, high)):
            results.append(measured(f"  {count} micro-batches, rank {rank}", location(values).scaled(_MIB), "MiB"))
        low, high, rank = _of_the_rank_that_grows_most(resident[label(side, few)], resident[label(side, many)])
        if all(low):
            more = location([b - a for a, b in zip(low, high, strict=True)])
            results.append(measured(f"  peak resident set, {many} micro-batches less {few}, rank {rank}", more.scaled(_MIB), "MiB"))
    return results


def _of_the_rank_that_grows_most(few: Sequence[Sequence[int]], many: Sequence[Sequence[int]]) -> tuple[list[int], list[int], int]:
    """Return the bytes of each round of the rank that grows most over all rounds, and the rank."""
    growth = [sum(high) - sum(low) for low, high in zip(zip(*few, strict=True), zip(*many, strict=True), strict=True)]
    rank = growth.index(max(growth))
    return [each[rank] for each in few], [each[rank] for each in many], rank


if __name__ == "__main__":
    sys.exit(main())
