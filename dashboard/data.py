"""Runs as the pages see them: read once per server, polled little by little, shared by all sessions. Imports no Streamlit.

A page asks for what it shows; what is dear (report, suggestions) is made anew only when there is something new, and never so often
that it would take a noticeable share of a core.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd

from dashboard.brief import Brief, build_brief
from dashboard.bubble_causes import CauseFinder, usual_seconds
from dashboard.recuts import Recut, cut_marks, find_recuts
from dashboard.simulated import ideal_step, mean_passes
from dashboard.timeline_message import Scene
from dashboard.window import Lane, lanes_of
from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.liveness import Liveness, RunState
from pptoolkit.analysis.timeline import clock_uncertainty_ns
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.compare import Comparison, compare, losses_by_step
from pptoolkit.planner.predict import Predictor
from pptoolkit.planner.report import Report
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import Suggestions
from pptoolkit.run import Run
from pptoolkit.simulator import SimulatedStep
from pptoolkit.telemetry import RunInfo
from pptoolkit.telemetry.event_reader import Skipped
from pptoolkit.telemetry.heartbeat import Heartbeat

POLL_EVERY_S = 0.25
CURVES_PAUSE_S = 5.0
ENDED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
_LEAST_PAUSE_S = 1.5
_SHARE = 8  # a result that took t seconds to make is kept for at least 8 t
_BEATS_SHARE = 40  # likewise for signs of life, where a thousand files are read
_OLDEST_BEATS_S = 2.0  # well below what makes a rank silent
_T = TypeVar("_T")


@dataclass(slots=True)
class _Kept:
    version: int
    of: object
    made_s: float
    took_s: float
    value: object


class WatchedRun:
    """One run directory that is being looked at. Safe to use from several sessions at once.

    Args:
        path: The run directory.

    Raises:
        RunError: If there is no readable run.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._run = Run.open(path)
        self._born_s = self._run.info.created_unix_s
        self._version = 0
        self._polled_s = 0.0
        self._beats: tuple[Heartbeat, ...] | None = None
        self._beats_until_s = 0.0
        self._kept: dict[str, _Kept] = {}
        self._finder = CauseFinder()

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def info(self) -> RunInfo:
        return self._run.info

    def refresh(self) -> None:
        """Read what was written since the last call, unless that was a moment ago."""
        with self._lock:
            if time.monotonic() - self._polled_s < POLL_EVERY_S:
                return
            if self._run.poll():
                self._version += 1
            if self._run.info.created_unix_s != self._born_s:  # removed and begun anew under the same name
                self._run = Run.open(self.path)
                self._born_s, self._kept, self._finder = self._run.info.created_unix_s, {}, CauseFinder()
                self._run.poll()
            self._polled_s = time.monotonic()
            if self._polled_s >= self._beats_until_s:
                self._beats = None

    def liveness(self) -> Liveness:
        with self._lock:
            return self._run.liveness(heartbeats=self.heartbeats())

    def is_live(self) -> bool:
        """Whether more may come: then pages refresh."""
        return self.liveness().state not in ENDED

    def last_sign_unix_s(self) -> float:
        """Return when a rank last gave a sign of life or finished a step; 0 if never."""
        scalars = self.scalars()
        beats = [beat.unix_s for beat in self.heartbeats()]
        return max([*beats, float(scalars["unix_s"].iloc[-1]) if len(scalars) else 0.0], default=0.0)

    def heartbeats(self) -> tuple[Heartbeat, ...]:
        """Return the ranks' signs of life as they were at the last refresh; a moment older where many ranks make reading them dear."""
        with self._lock:
            if self._beats is None:
                began_s = time.monotonic()
                self._beats = tuple(self._run.heartbeats())
                ended_s = time.monotonic()
                self._beats_until_s = ended_s + min(_BEATS_SHARE * (ended_s - began_s), _OLDEST_BEATS_S)
            return self._beats

    def brief(self) -> Brief:
        """Return the run in a few numbers, as of the last refresh."""
        with self._lock:
            return self._keep("brief", self._brief, lazily=False)

    def _brief(self) -> Brief:
        return build_brief(self._run, self.losses())

    def report(self) -> Report:
        return self._keep("report", self._run.report)

    def suggestions(self) -> Suggestions:
        return self._keep("suggestions", self._run.suggest)

    def measured_step(self) -> MeasuredStep | None:
        return self._keep("measured", self._run.measured_step)

    def predictor(self) -> Predictor | None:
        """Return what predicts plans from this run, or None without usable steps or with a schedule that cannot be built."""
        return self._keep("predictor", self._predictor)

    def _predictor(self) -> Predictor | None:
        measured = self._run.measured_step()
        if measured is None:
            return None
        try:
            return Predictor(measured)
        except PPToolkitError:
            return None

    def ideal_step(self, *, own_medians: bool) -> SimulatedStep | None:
        """Return the run's step as it would be without jitter, or, with equal stages and free links, as its schedule is by itself."""
        predictor = self.predictor()
        if predictor is None:
            return None
        plan = predictor.measured.plan
        own = predictor.simulate(plan)
        if own_medians:
            return own
        forward_s, backward_s = mean_passes(own.costs, plan.stages)
        return ideal_step(own.program.schedule, forward_s=forward_s, backward_s=backward_s)

    def clock_uncertainty_s(self) -> dict[int, float]:
        """Return how exactly each rank's clock is known; ranks that never measured are left out."""
        with self._lock:
            return self._keep("clocks", lambda: {r: ns / 1e9 for r, ns in clock_uncertainty_ns(self._run.marks).items()}, lazily=False)

    def skipped(self) -> Skipped:
        """Return what could not be read of the events."""
        with self._lock:
            return self._run.skipped

    def steady_events(self) -> pd.DataFrame:
        """Return the events of the usable steps."""
        with self._lock:
            return self._run.steady().events

    def scalars(self) -> pd.DataFrame:
        with self._lock:
            return self._run.scalars()

    def losses(self) -> pd.DataFrame:
        """Return step and loss, one row a step that has one."""
        with self._lock:
            return self._keep("losses", self._losses, lazily=False)

    def _losses(self) -> pd.DataFrame:
        frame: pd.DataFrame = losses_by_step(self._run.scalars()).rename("loss").rename_axis("step").reset_index()
        return frame

    def step_times(self) -> pd.DataFrame:
        """Return step and step_time_s: the slowest rank's of each step."""
        with self._lock:
            return self._keep("step times", self._step_times, lazily=False)

    def _step_times(self) -> pd.DataFrame:
        frame: pd.DataFrame = self._run.scalars().groupby("step", as_index=False)[["step_time_s"]].max()
        return frame

    def curves(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return :meth:`losses` and :meth:`step_times`, some seconds old at most: each new picture of a curve costs the tab memory."""
        return self._keep("curves", lambda: (self.losses(), self.step_times()), pause_s=CURVES_PAUSE_S)

    def compare_with(self, before: "WatchedRun") -> Comparison:
        """Compare ``before`` with this run.

        Raises:
            RunError: If one of them has no usable step.
        """
        # Always the same order of locks, or two sessions that compare a with b and b with a would wait for each other.
        first, second = sorted((self, before), key=lambda run: str(run.path))
        with first._lock, second._lock:
            return self._keep("comparison", lambda: compare(before._run, self._run), of=(before.path, before._version))

    def scene(self, *, around: tuple[int, int] | None = None, newest: int = 4) -> Scene | None:
        """Return what the Gantt can show; None while no rank has finished a step.

        Args:
            around: Begin and end, nanoseconds since the run's first step, that will be looked at; None: the newest steps.
            newest: How many steps to read when ``around`` is None.
        """
        with self._lock:
            steps = self._keep("steps", self._steps, lazily=False)
            if steps.empty:
                return None
            wanted = steps.tail(newest)
            if around is not None:
                origin = int(steps["start_ns"].min())
                touched = steps[(steps["end_ns"] >= origin + around[0]) & (steps["start_ns"] <= origin + around[1])]
                wanted = touched if len(touched) else wanted
            first, last = int(wanted["step"].min()), int(wanted["step"].max())
            timeline = self._keep("timeline", lambda: self._run.timeline((first, last + 1)), of=(first, last), lazily=False)
            lanes: tuple[Lane, ...] = lanes_of(self.info.stage_to_rank, ranks=self.info.ranks)
            cuts = cut_marks(self.info)
            return Scene(timeline=timeline, steps=steps, lanes=lanes, silent=self._run.silent_ranks, finder=self._finder, cuts=cuts)

    def recuts(self) -> tuple[Recut, ...]:
        """Return the changes of the cuts inside the run, with what was promised of each and what came; mostly there are none."""
        with self._lock:
            return self._keep("recuts", lambda: find_recuts(self.info, self._run.steps()))

    def learn_usual_times(self) -> None:
        """Take the medians of the steps so far as what is usual, before the causes of bubbles are asked for."""
        with self._lock:
            self._finder.usual_s = self._keep("usual", lambda: usual_seconds(self._run.steady()))

    def step_numbers(self) -> list[int]:
        """Return the steps that all ranks have finished, in the order of time."""
        with self._lock:
            steps = self._keep("steps", self._steps, lazily=False)
        return [int(step) for step in steps.loc[steps["complete"], "step"].unique()]

    def step_scene(self, step: int) -> Scene | None:
        """Return one step alone, in its latest attempt; None if it is not there."""
        with self._lock:
            steps = self._keep("steps", self._steps, lazily=False)
            mine = steps[steps["step"] == step].tail(1).reset_index(drop=True)
            if mine.empty:
                return None
            timeline = self._run.timeline((step, step + 1))
            timeline = timeline[timeline["attempt"] == int(mine["attempt"].iloc[0])]
            lanes = lanes_of(self.info.stage_to_rank, ranks=self.info.ranks)
            return Scene(timeline=timeline, steps=mine, lanes=lanes, silent=self._run.silent_ranks, cuts=cut_marks(self.info))

    def layer_costs(self) -> LayerCosts | None:
        """Return what each layer costs; None without usable steps or a layer list."""
        measured = self.measured_step()
        return measured.layers if measured is not None else None

    def _steps(self) -> pd.DataFrame:
        return self._run.steps().sort_values("start_ns", ignore_index=True)

    def _keep(self, kind: str, make: Callable[[], _T], *, of: object = None, lazily: bool = True, pause_s: float = 0.0) -> _T:
        """Return the value of this kind, made anew when something new was read or when it is asked ``of`` something else.

        Args:
            kind: One value is kept per kind.
            make: Makes it.
            of: What it was asked of, e.g. the range of steps.
            lazily: Whether an older value will do for as long as its cost demands.
            pause_s: And for at least so long.
        """
        with self._lock:
            kept, now = self._kept.get(kind), time.monotonic()
            stale = kept is None or kept.of != of
            if kept is not None and kept.version != self._version:
                stale = stale or not lazily or now - kept.made_s > max(_LEAST_PAUSE_S, pause_s, _SHARE * kept.took_s)
            if kept is None or stale:
                value = make()
                kept = self._kept[kind] = _Kept(self._version, of, now, time.monotonic() - now, value)
            return kept.value  # type: ignore[return-value]
