"""Faults put into real trainings on sleeping layers, one at a time, in each of four stages: what is named, what is missed, what is made up.

Four ranks with two layers each, 1F1B, eight micro-batches. A fault counts as named when the verdict has its cause and its place; everything
else that a report says of the run is a false finding. Healthy runs differ by their layers' times, which are even over the stages. A case in
which the machine itself woke a sleeping layer late has a fault that nobody put in: it counts for nothing, and how many there are is said.
"""

import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.cases import run_cases
from benchmarks.diagnosis_job import DISTURBED
from benchmarks.report import Result, argument_parser, describe_machine, fail, show, tell
from pptoolkit.analysis.bubbles import compute_per_step
from pptoolkit.errors import PPToolkitError
from pptoolkit.run import Run

_STAGES = 4
_FORWARD_S, _BACKWARD_S = 0.003, 0.006
_CUTS = [2, 4, 6]


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--healthy", type=int, help="healthy runs (default 20; 1 with --quick)")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    steps = 14 if options.quick else 40
    cases = faulty_cases(steps, stages=[1] if options.quick else list(range(_STAGES)), quick=options.quick)
    cases += healthy_cases(draw, options.healthy if options.healthy is not None else 1 if options.quick else 20, steps)
    tell(describe_machine())
    try:
        with tempfile.TemporaryDirectory() as folder:
            runs = run_cases("benchmarks.diagnosis_job", cases, ranks=_STAGES, folder=Path(folder) / "job")
            opened = {case["name"]: Run.open(runs / case["name"]) for case in cases}
            disturbed = {name for name in opened if (runs / name / DISTURBED).is_file()}
            quiet = [case for case in cases if case["name"] not in disturbed]
            results = [*(evaluate(quiet, opened) if quiet else []), _disturbed(len(disturbed), len(cases))]
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0 if all(result.holds is not False for result in results) else 1


def faulty_cases(steps: int, *, stages: Sequence[int], quick: bool) -> list[dict[str, Any]]:
    """Return one case for each fault and place."""
    cases = []

    def add(
        name: str, expected: tuple[str, str, Any], *, forward: float = 1.0, backward: float = 1.0, stage: int = -1, **more: Any
    ) -> None:
        inside = range(2 * stage, 2 * stage + 2) if stage >= 0 else ()
        cases.append(
            {
                "name": name,
                "expected": expected,
                "forward_s": [_FORWARD_S * (forward if i in inside else 1.0) for i in range(2 * _STAGES)],
                "backward_s": [_BACKWARD_S * (backward if i in inside else 1.0) for i in range(2 * _STAGES)],
                "cuts": _CUTS,
                "steps": steps,
                **more,
            }
        )

    for s in stages:
        add(f"slow-forward-{s}", ("more_work", "forward", s), stage=s, forward=1.8)
        add(f"slow-backward-{s}", ("more_work", "backward", s), stage=s, backward=1.5)
        add(f"slow-device-{s}", ("slower_device", "", s), stage=s, forward=1.5, backward=1.5)
        add(f"uneven-cut-{s}", ("more_work", "", s), cuts=[[3, 4, 6], [1, 4, 6], [2, 3, 6], [2, 4, 5]][s])
        add(f"jitter-{s}", ("jitter", "", s), fault={"kind": "jitter", "rank": s, "sigma": 0.6})
        add(f"pause-{s}", ("pause", "", s), fault={"kind": "pause", "rank": s, "seconds": 0.15, "every": 37})
        add(f"checkpoint-{s}", ("checkpoint", "", s), fault={"kind": "checkpoint", "rank": s, "seconds": 0.6, "step": steps // 2})
    for a, b in [(1, 2)] if quick else [(0, 1), (1, 2), (2, 3), (1, 0), (2, 1), (3, 2)]:
        add(f"slow-link-{a}-{b}", ("slow_link", "", (a, b)), fault={"kind": "link", "rank": a, "target": b, "seconds": 0.02})
    add("slow-loader-0", ("slow_loader", "", 0), fault={"kind": "loader", "rank": 0, "seconds": 0.06})
    return cases


def healthy_cases(draw: random.Random, count: int, steps: int) -> list[dict[str, Any]]:
    """Return cases without a fault: other times of forward and backward, the same in all layers."""
    cases = []
    for i in range(count):
        forward_s, backward_s = draw.uniform(0.002, 0.005), draw.uniform(0.003, 0.009)
        times = {"forward_s": [forward_s] * 2 * _STAGES, "backward_s": [backward_s] * 2 * _STAGES}
        cases.append({"name": f"healthy-{i}", "expected": None, "cuts": _CUTS, "steps": steps, **times})
    return cases


def evaluate(cases: Sequence[dict[str, Any]], runs: dict[str, Run]) -> list[Result]:
    """Return precision, recall and the rest; the confusion table goes to the error stream."""
    named: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    confusion: Counter[tuple[str, str]] = Counter()
    false_findings = true_findings = alarms = healthy = 0
    rests, sums = [], []
    for case in cases:
        run = runs[case["name"]]
        report = run.report()
        assert report.verdict is not None, "every run has usable steps"
        findings = report.verdict.findings
        if report.causes is not None:
            rests.append(abs(report.causes.ratios["unexplained"]))
            # Means on both sides: parts of a sum add up in the mean, and medians do not.
            steady = run.steady()
            measured = 1 - compute_per_step(steady).to_numpy().mean() / steady.step_times_s.mean()
            if report.causes.steps == steady.count:
                sums.append(abs(sum(report.causes.ratios.values()) - measured))
        if case["expected"] is None:
            healthy += 1
            alarms += bool(findings)
            confusion["healthy", findings[0].cause if findings else "nothing"] += 1
            continue
        kind = case["name"].rsplit("-", 2 if "link" in case["name"] else 1)[0]
        right = [_is_right(case["expected"], finding) for finding in findings]
        asked[kind] += 1
        named[kind] += bool(right) and right[0]
        true_findings += any(right)
        false_findings += sum(not r for r in right)
        confusion[kind, findings[0].cause if findings else "nothing"] += 1
        if not (right and right[0] and all(right)):
            tell(f"{case['name']}: {'; '.join(f.title for f in findings) or 'nothing'}")
    _tell_confusion(confusion)
    total, hits = sum(asked.values()), sum(named.values())
    said = true_findings + false_findings
    results = [_rate(f"named right: {kind}", named[kind], asked[kind]) for kind in asked]
    results += [
        _rate("recall", hits, total),
        _rate("precision", true_findings, said),
        Result(
            name="healthy runs with a verdict",
            value=alarms,
            low=alarms,
            high=alarms,
            unit=f"of {healthy}",
            goal="none",
            holds=alarms == 0 if healthy else None,
        ),
        _largest("bubble: largest part that no cause explains", rests),
        _largest("bubble: largest difference of the parts' sum and the measured one", sums),
    ]
    return results


def _is_right(expected: tuple[str, str, Any], finding: Any) -> bool:
    cause, kind, place = expected
    if finding.cause != cause or (kind and finding.kind != kind):
        return False
    if cause == "slow_link":
        return bool(finding.link == tuple(place))
    return place in (finding.stage, finding.rank)


def _tell_confusion(confusion: "Counter[tuple[str, str]]") -> None:
    said = sorted({cause for _, cause in confusion})
    faults = list(dict.fromkeys(fault for fault, _ in confusion))
    width = max(map(len, faults), default=0)
    tell(f"{'':{width}}  {'  '.join(said)}")
    for fault in faults:
        tell(f"{fault:{width}}  {'  '.join(f'{confusion[fault, cause] or chr(46):>{len(cause)}}' for cause in said)}")


def _rate(name: str, hits: int, count: int) -> Result:
    value = hits / count if count else 1.0
    return Result(name=name, value=value, low=value, high=value, unit=f"of {count}", goal="all", holds=hits == count if count else None)


def _disturbed(count: int, cases: int) -> Result:
    return Result(name="cases that the machine disturbed, not counted", value=count, low=count, high=count, unit=f"of {cases}")


def _largest(name: str, values: Sequence[float]) -> Result:
    worst = max(values, default=0.0)
    holds = worst <= 0.02 if values else None
    return Result(name=name, value=worst, low=worst, high=worst, unit="of the step", goal="at most 0.02", holds=holds)


if __name__ == "__main__":
    sys.exit(main())
