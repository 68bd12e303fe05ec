"""The loop as a whole: train with equal layer counts, apply the suggested cut, train again; was what was predicted achieved, what was won?

(a) sleeping layers, 8 and 12 of them on 4 ranks, 12 random cost lists each, whose best cut of all is known and trained too;
(b) a GPT on 2 ranks; (c) a small Swin-like model on 2 ranks, whose layers differ. Beside ours: what a partitioner by parameters
(DeepSpeed) and torchgpipe's block partition of the measured times would have cut, trained as well.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import run_cases
from benchmarks.loop_job import OUTCOMES, random_costs
from benchmarks.report import Result, argument_parser, describe_machine, fail, show, tell
from pptoolkit.errors import PPToolkitError

_GPT = {"vocabulary": 4096, "width": 128, "depth": 6, "heads": 4, "sequence": 128}
_SWIN = {"image": 64, "patch": 2, "width": 32, "depths": [2, 2, 4], "heads": 2, "window": 4, "classes": 1000}


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--parts", default="abc", help="which of a, b and c (default all)")
    options = parser.parse_args()
    tell(describe_machine())
    try:
        results = []
        for part, ranks, within in (("a", 4, 0.03), ("b", 2, 0.07), ("c", 2, 0.07)):
            if part in options.parts:
                outcomes = train(cases(part, seed=options.seed, quick=options.quick), ranks=ranks)
                results += evaluate(part, outcomes, within=within)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0 if all(result.holds is not False for result in results) else 1


def cases(part: str, *, seed: int, quick: bool) -> list[dict[str, Any]]:
    """Return the models of a part."""
    if part == "a":
        found = []
        for layers in (8, 12):
            for i in range(1 if quick else 12):
                forward, backward = random_costs(layers, 1000 * seed + 100 * layers + i)
                found.append(
                    {
                        "name": f"sleep{layers}-{i}",
                        "kind": "sleeping",
                        "forward_s": forward,
                        "backward_s": backward,
                        "steps": 10 if quick else 16,
                    }
                )
        return found
    steps = 8 if quick else 24
    if part == "b":
        return [{"name": "gpt", "kind": "gpt", "config": _GPT, "steps": steps, "batch_size": 16 if quick else 32}]
    return [{"name": "swin", "kind": "swin", "config": _SWIN, "steps": steps, "batch_size": 16 if quick else 32}]


def train(chosen: Sequence[dict[str, Any]], *, ranks: int) -> list[dict[str, Any]]:
    """Run the cases and return what came of them.

    Raises:
        TrainingError: As :func:`run_cases`.
    """
    with tempfile.TemporaryDirectory() as folder:
        runs = run_cases("benchmarks.loop_job", chosen, ranks=ranks, folder=Path(folder) / "job")
        return [json.loads(line) for line in (runs / OUTCOMES).read_text().splitlines()]


def evaluate(part: str, outcomes: Sequence[dict[str, Any]], *, within: float) -> list[Result]:
    """Return what a part promised beside what came."""
    for outcome in outcomes:
        tell(json.dumps(outcome))
    changed = [o for o in outcomes if o["predicted_s"]]
    results = [
        _range(f"({part}) suggested another cut", [len(changed) / len(outcomes)], f"of {len(outcomes)}"),
        _range(f"({part}) replay error", [abs(o["replay_error_ratio"]) for o in outcomes if o["replay_error_ratio"] is not None], "ratio"),
    ]
    if changed:
        errors = [abs(o["ours_s"] / o["predicted_s"] - 1) for o in changed]
        results.append(_range(f"({part}) achieved against predicted", errors, "ratio", at_most=within))
    if part == "a":
        results.append(_range("(a) achieved over the best of all cuts", [o["ours_s"] / o["best_s"] for o in outcomes], "x", at_most=1.03))
    for name in ("equal", "by_parameters", "block_partition"):
        gains = [1 - o["ours_s"] / o[f"{name}_s"] for o in outcomes if f"{name}_s" in o]
        results.append(_range(f"({part}) step time less than {name}'s", gains, "ratio"))
    return results


def _range(name: str, values: Sequence[float], unit: str, *, at_most: float | None = None) -> Result:
    """Return the median with the whole range; a goal is held against the median, and each case is told on the error stream."""
    found = list(values) or [float("nan")]
    median = statistics.median(found)
    goal = None if at_most is None else f"median <= {at_most:g}"
    return Result(
        name=f"{name}: median and range",
        value=median,
        low=min(found),
        high=max(found),
        unit=unit,
        goal=goal,
        holds=None if at_most is None else median <= at_most,
    )


if __name__ == "__main__":
    sys.exit(main())
