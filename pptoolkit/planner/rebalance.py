"""Whether a run that trains should be cut anew, and whether a re-cut kept its promise. Looks at the newest steps; decides, moves nothing.

A re-cut must pay for itself in the steps that are left:

    low end of the predicted gain x step time x steps left  >  building the stages anew + moving the layers

and the gain must exceed the noise as any suggestion must. So a balanced run is never cut anew. A cut that this run has had before is taken
up again only where it was measured to be faster than the present one.
"""

import math
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pptoolkit.analysis.diagnosis import compute_series, since_change
from pptoolkit.analysis.layer_costs import measure_layer_costs
from pptoolkit.analysis.links import measure_links
from pptoolkit.analysis.records import Records
from pptoolkit.analysis.regime import find_regime_changes
from pptoolkit.analysis.segments import info_of, segments_of, spans_of
from pptoolkit.analysis.statistics import Interval
from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.analysis.timeline import clock_uncertainty_ns
from pptoolkit.errors import ConfigError, counted
from pptoolkit.plan import Plan
from pptoolkit.planner.compare import PredictionCheck, check_prediction
from pptoolkit.planner.measure import measure_step
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import MIN_GAIN, suggest
from pptoolkit.planner.suggestion import Suggestion
from pptoolkit.telemetry import EventReader, Flag, Op, RunDirectory, RunInfo
from pptoolkit.telemetry.event_reader import READER_SCHEMA

LOOKING_SHARE = 0.01  # of the training time may go to looking
_WINDOW = 200  # steps behind a decision
_KEPT = pa.array([int(Op.CLOCK), int(Op.PROBE)], pa.uint8())
_MOST_DOUBLINGS = 16
_SLOW_LINK = 50e6  # bytes per second, where no link was ever measured


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRebalance:
    """When a training looks whether it should be cut anew.

    Args:
        every: Steps before the first look and between two looks; more where looking would take more than 1 % of the time, and twice as
            many after each re-cut.
    """

    every: int = 20

    def __post_init__(self) -> None:
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 8:
            raise ConfigError(
                f"every={self.every!r} in AutoRebalance is out of range; use at least 8 steps, for costs come from steady ones"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What one look came to.

    Args:
        plan: The plan to go on with; None: the present one.
        sentence: What is said of it; of a decision against a change, why.
        next_step: Before which step to look again.
    """

    plan: Plan | None
    sentence: str
    next_step: int


class PlanWatch:
    """Follows one run's events; used by the process that decides for all.

    Args:
        run: The run directory, with the events of all ranks.
        settings: When to look.
    """

    def __init__(self, run: RunDirectory, settings: AutoRebalance) -> None:
        self._run, self._settings = run, settings
        self._reader = EventReader(run)
        self._events = READER_SCHEMA.empty_table()
        self._building_s = 0.0  # what the first step under a plan took longer than the others, and what a re-cut was measured to take
        self._left: dict[tuple[int, ...], Interval] = {}  # step times of plans that were left

    def look(self, *, step: int, steps: int) -> Decision:
        """Decide before ``step`` how to go on; all events up to here must be on disk.

        Args:
            step: The coming step.
            steps: Steps of the whole run.
        """
        began_s = time.monotonic()
        info = self._run.read_info()
        steady = self._steady(info, step)
        plan, reason, step_s = None, "no step is complete on all ranks yet", 1.0
        if steady.step_time is not None:
            step_s = steady.step_time.median
            plan, reason = self._decide(self._measure(steady, info), info, left=steps - step)
        recuts = len(spans_of(info)) - 1 + (plan is not None)
        pause = max(self._settings.every, math.ceil((time.monotonic() - began_s) / (LOOKING_SHARE * step_s)))
        return Decision(plan=plan, sentence=f"step {step}: {reason}", next_step=step + (pause << min(recuts, _MOST_DOUBLINGS)))

    def note_moving(self, seconds: float) -> None:
        """Take notice of what a re-cut took in all."""
        self._building_s = max(self._building_s, seconds)

    def achieved(self) -> PredictionCheck | None:
        """Return what the present plan promised beside what came; None before its first usable step, or if it promised nothing."""
        info = self._run.read_info()
        steady = self._steady(info, spans_of(info)[-1][0] + _WINDOW)
        present = steady.count and info_of(info, steady).plan == info.plan
        return check_prediction(info, steady.step_time) if present and steady.step_time is not None else None

    def _steady(self, info: RunInfo, step: int) -> SteadySteps:
        fresh = self._reader.poll()
        self._note_first_use(fresh)
        events = pa.concat_tables([self._events, fresh])
        first = max(spans_of(info)[-1][0], step - _WINDOW)
        kept = pc.or_(pc.greater_equal(events["step"], first), pc.is_in(events["op"], _KEPT))
        self._events = events.filter(kept).combine_chunks()
        records = Records(ranks=info.ranks)
        records.spans = spans_of(info)
        records.add(self._events, [], ranks=info.ranks)
        steady = records.steady()
        return since_change(steady, find_regime_changes(compute_series(steady.events))) if steady.count else steady

    def _note_first_use(self, events: pa.Table) -> None:
        rows = events.filter(pc.equal(events["op"], int(Op.STEP)))
        first = [flags & int(Flag.FIRST_USE) > 0 for flags in rows["flags"].to_pylist()]
        seconds = [(end - start) / 1e9 for start, end in zip(rows["start_ns"].to_pylist(), rows["end_ns"].to_pylist(), strict=True)]
        slowest = max((s for s, is_first in zip(seconds, first, strict=True) if is_first), default=0.0)
        usual = sorted(s for s, is_first in zip(seconds, first, strict=True) if not is_first)
        if slowest and usual:
            self._building_s = max(self._building_s, slowest - usual[len(usual) // 2])

    def _measure(self, steady: SteadySteps, info: RunInfo) -> MeasuredStep:
        held = info_of(info, steady)
        probes = self._events.filter(pc.equal(self._events["op"], int(Op.PROBE))).to_pandas()
        links = measure_links(steady, probes, uncertainty_ns=clock_uncertainty_ns(self._events))
        return measure_step(steady, held, measure_layer_costs(steady, held), links)

    def _decide(self, measured: MeasuredStep, info: RunInfo, *, left: int) -> tuple[Plan | None, str]:
        found = suggest(measured, info)
        reason = found.no_change.reason if found.no_change is not None else ""
        for item in found:
            reason = self._objection(item, measured, left)
            if not reason:
                self._left[measured.plan.cuts] = measured.step_time
                return item.plan, _promise(item, measured, left, self._cost_s(item.plan, measured))
        return None, f"cuts {list(measured.plan.cuts)} stay: {reason}"

    def _objection(self, item: Suggestion, measured: MeasuredStep, left: int) -> str:
        """Return why a plan that would be faster is not taken up all the same; empty where nothing speaks against it."""
        before = self._left.get(item.plan.cuts)
        if before is not None and before.low >= measured.step_time.median * (1 - MIN_GAIN):
            return f"cuts {list(item.plan.cuts)} were left before, with {before.median * 1e3:.1f} ms a step, no faster than now"
        gain_s, cost_s = item.gain_low_ratio * measured.step_time.median * left, self._cost_s(item.plan, measured)
        if gain_s <= cost_s:
            new = list(item.plan.cuts)
            return f"cuts {new} would save at least {gain_s:.1f} s in the {left} steps left, and moving costs about {cost_s:.1f} s"
        return ""

    def _cost_s(self, plan: Plan, measured: MeasuredStep) -> float:
        """Return what a re-cut costs: building the stages anew, as far as it was seen, and moving what changes its rank."""
        layers = measured.layers.layers
        old, new = (_stage_of(p, len(layers)) for p in (measured.plan, plan))
        moved = sum(layer.parameter_bytes for i, layer in enumerate(layers) if old[i] != new[i]) * (1 + measured.state_bytes_ratio)
        return self._building_s + moved / (measured.bandwidth or _SLOW_LINK)


def describe_achievement(found: PredictionCheck, info: RunInfo) -> str:
    """Say in one sentence what the re-cuts of a run came to: the last promise, and what was kept of it."""
    *_, before, last = segments_of(info)
    predicted, achieved = found.predicted, found.achieved
    return (
        f"re-cut at step {last.first_step}, cuts {list(before.cuts)} -> {list(last.cuts)}: "
        f"before {predicted.baseline_step_time_s * 1e3:.1f} ms a step, "
        f"predicted {_interval_ms(predicted.step_time_s, predicted.low_s, predicted.high_s)}, "
        f"achieved {_interval_ms(achieved.median, achieved.low, achieved.high)} "
        f"over {counted(achieved.samples, 'step')}: {found.error_ratio:+.1%}, "
        f"{'inside' if found.within else 'outside'} the predicted interval; moving took {last.moving_s:.1f} s"
    )


def _interval_ms(value_s: float, low_s: float, high_s: float) -> str:
    return f"{value_s * 1e3:.1f} ms ({low_s * 1e3:.1f} to {high_s * 1e3:.1f})"


def _promise(item: Suggestion, measured: MeasuredStep, left: int, cost_s: float) -> str:
    saved_s = (measured.step_time.median - item.step_time_s) * left
    return (
        f"cuts {list(measured.plan.cuts)} -> {list(item.plan.cuts)}, predicted {item.step_time_s * 1e3:.1f} ms a step instead of "
        f"{measured.step_time.median * 1e3:.1f} ({item.gain_ratio:.1%} less, {item.gain_low_ratio:.1%} to {item.gain_high_ratio:.1%}): "
        f"about {saved_s:.1f} s saved in the {left} steps left, moving costs about {cost_s:.1f} s"
    )


def _stage_of(plan: Plan, layers: int) -> list[int]:
    return [stage for stage, part in enumerate(plan.stage_layers(layers)) for _ in part]
