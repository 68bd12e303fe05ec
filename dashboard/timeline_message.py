"""From a timeline and the person's view to the message for the canvas: which window, which rows, which words and colours."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from dashboard.bubble_causes import CauseFinder
from dashboard.bubble_kinds import KINDS, build_cause_gaps, build_gaps
from dashboard.charts.palette import BUBBLE_LABEL, OP_STYLES
from dashboard.levels import POINTS, build_levels
from dashboard.view_state import ViewState
from dashboard.window import Lane, Window, build_window
from dashboard.wire import encode
from pptoolkit.analysis.step_path import find_step_path

DEFAULT_WIDTH_PX = 1280
MAX_HEIGHT_PX = 560
OVERVIEW_STEPS = 600
CLOSED_POINTS = 20_000  # of a curve, where nobody brings more when it is zoomed
PATH_STEPS = 4  # whose critical path and causes are drawn at once
_PHASES = ({"label": "warm-up", "shape": "rise"}, {"label": "steady", "shape": "flat"}, {"label": "cool-down", "shape": "fall"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything the Gantt can show of a run at one moment.

    Args:
        timeline: Events on one clock, with rank, replica and attempt.
        steps: One row a step, in order of time: step, start_ns, end_ns, step_time_s.
        lanes: Rows.
        silent: Ranks of the layout that have sent nothing.
        finder: Tells the causes of bubbles.
        cuts: First step and cuts of each plan that held; empty where there was only one.
    """

    timeline: pd.DataFrame
    steps: pd.DataFrame
    lanes: tuple[Lane, ...]
    silent: frozenset[int] = frozenset()
    finder: CauseFinder = field(default_factory=CauseFinder)
    cuts: tuple[tuple[int, str], ...] = ()

    @property
    def start_ns(self) -> int:
        return int(self.steps["start_ns"].min())

    @property
    def end_ns(self) -> int:
        return int(self.steps["end_ns"].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """What the page asks the canvas to show: a step, a window, or the newest steps.

    Args:
        token: Changes with every request; the canvas then gives up its own view.
        step: Step to fit into the view; None: follow the newest.
        steps: How many steps to show while following.
        window_us: Begin and end in microseconds since the run's first step, before ``step``.
    """

    token: str
    step: int | None = None
    steps: int = 2
    window_us: tuple[float, float] | None = None

    @property
    def follow(self) -> bool:
        return self.step is None and self.window_us is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """How the canvas is furnished.

    Args:
        max_height_px: Of the rows; more rows scroll.
        still: A single step: without overview, and without buttons to follow or to go to another step.
        plain: Without any buttons and legend: a second Gantt beside a first one.
        axis: What the time axis counts.
        reach_us: Length of the time axis at least, so that Gantts under each other have one scale.
        closed: Nobody answers the canvas: it gets all that it may show at once.
        levels: Whether there is anything to draw under the rows.
        live: More steps may come.
        numbered: Steps have numbers that mean something; a simulated one has none.
    """

    max_height_px: int = MAX_HEIGHT_PX
    still: bool = False
    plain: bool = False
    axis: str = "time in run"
    reach_us: float = 0.0
    closed: bool = False
    levels: bool = True
    live: bool = False
    numbered: bool = True


def build_message(scene: Scene, view: ViewState | None, jump: Jump, *, panel: Panel | None = None) -> bytes:
    """Return the message for what the person looks at, with half as much on either side, so that a drag finds bars at once."""
    panel = panel or Panel()
    width_px = view.width_px if view is not None else DEFAULT_WIDTH_PX
    start_ns, end_ns = _visible(scene, view, jump)
    margin = (end_ns - start_ns) // 2
    window = build_window(scene.timeline, scene.lanes, start_ns=start_ns - margin, end_ns=end_ns + margin, width_px=2 * width_px)
    more, words = _extras(scene, view, window, (start_ns, end_ns), panel)
    header = {
        "origin_us": (window.origin_ns - scene.start_ns) / 1e3,
        "loaded": [(start_ns - margin - scene.start_ns) / 1e3, (end_ns + margin - scene.start_ns) / 1e3],
        "view": [(start_ns - scene.start_ns) / 1e3, (end_ns - scene.start_ns) / 1e3],
        "extent": [0.0, max((scene.end_ns - scene.start_ns) / 1e3, panel.reach_us)],
        "jump": jump.token,
        "follow": jump.follow,
        "width": width_px,
        "pixel_us": window.pixel_ns / 1e3,
        "merged": bool((window.bars["count"] > 1).any()),
        "events": window.events,
        "last_step": int(scene.steps["step"].iloc[-1]),
        "cuts": cut_places(scene),
        "max_height": panel.max_height_px,
        "plain": panel.plain,
        "still": panel.still,
        "closed": panel.closed,
        "live": panel.live,
        "numbered": panel.numbered,
        "axis": panel.axis,
        "lanes": [_lane(lane, scene.silent) for lane in scene.lanes],
        "ops": {
            int(op): {"label": s.label, "letter": s.letter, "color": s.color, "ink": s.ink, "thin": s.thin} for op, s in OP_STYLES.items()
        },
        "bubble": BUBBLE_LABEL,
        "phases": _PHASES,
        "overview": overview(scene.steps if not panel.still else scene.steps.iloc[:0], scene.start_ns),
        **words,
    }
    return encode(window, header, more)


def _visible(scene: Scene, view: ViewState | None, jump: Jump) -> tuple[int, int]:
    """Return begin and end of what is looked at, on the timeline's clock."""
    answered = view is not None and view.jump == jump.token  # else the canvas has not seen this jump yet
    if view is not None and answered and not view.follow:
        return scene.start_ns + int(view.from_us * 1e3), scene.start_ns + int(view.to_us * 1e3)
    if not (view is not None and answered):
        if jump.window_us is not None:
            return scene.start_ns + int(jump.window_us[0] * 1e3), scene.start_ns + int(jump.window_us[1] * 1e3)
        if jump.step is not None:
            return step_window(scene, jump.step)
    return newest_window(scene, jump.steps)


def _extras(
    scene: Scene, view: ViewState | None, window: Window, visible: tuple[int, int], panel: Panel
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the groups of columns that are there on demand, and the header's words for them."""
    more: dict[str, dict[str, Any]] = {}
    words: dict[str, Any] = {"path": [], "gap_kinds": [], "gaps_note": ""}
    within = {"origin_ns": window.origin_ns, "start_ns": window.start_ns, "end_ns": window.end_ns}
    if panel.levels and (view is None or view.levels):
        more["levels"] = build_levels(scene.timeline, scene.lanes, **within, points=CLOSED_POINTS if panel.closed else POINTS)
    if view is not None and view.gaps:
        kinds, note = KINDS, ""
        if view.gaps == "cause":
            touched = _touched(scene, *visible)
            newest = touched.tail(PATH_STEPS)
            more["gaps"], kinds, unknown = build_cause_gaps(scene.timeline, scene.lanes, newest, scene.finder, **within)
            note = _say_left_out(len(touched) - len(newest), unknown)
        else:
            more["gaps"] = build_gaps(scene.timeline, scene.lanes, **within)
        words["gap_kinds"] = [{"label": k.label, "color": k.color, "word": k.word, "total": k.total} for k in kinds]
        words["gaps_note"] = note
    if view is not None and view.path:
        words["path"] = critical_paths(scene, *visible, most=len(scene.steps) if panel.closed else PATH_STEPS)
    return more, words


def critical_paths(scene: Scene, start_ns: int, end_ns: int, *, most: int = PATH_STEPS) -> list[list[list[float]]]:
    """Return the critical path of each step that is visible, at most ``most``: row, begin and end in microseconds of each op on it."""
    touched = _touched(scene, start_ns, end_ns).tail(most)
    row = {lane.rank: i for i, lane in enumerate(scene.lanes)}
    paths = []
    for step, attempt in zip(touched["step"], touched["attempt"], strict=True):
        events = scene.timeline[(scene.timeline["step"] == step) & (scene.timeline["attempt"] == attempt)]
        pieces = find_step_path(events)
        origin = scene.start_ns
        paths.append([[row[p.rank], (p.start_ns - origin) / 1e3, (p.end_ns - origin) / 1e3] for p in pieces if p.rank in row])
    return paths


def _touched(scene: Scene, start_ns: int, end_ns: int) -> pd.DataFrame:
    return scene.steps[(scene.steps["end_ns"] > start_ns) & (scene.steps["start_ns"] < end_ns)]


def _say_left_out(older: int, unknown: int) -> str:
    """Say of how many steps in view the causes are not shown, and what helps."""
    if unknown:
        return f"{unknown} of the steps in view cannot be told apart by cause: too many ops, or not complete"
    return f"causes of the newest {PATH_STEPS} steps in view only: zoom in for the others" if older > 0 else ""


def newest_window(scene: Scene, count: int) -> tuple[int, int]:
    """Return begin and end of the newest ``count`` steps."""
    return _around(scene.steps.tail(max(count, 1)))


def step_window(scene: Scene, step: int) -> tuple[int, int]:
    """Return begin and end of a step, in its last attempt; for a step that does not exist, of the nearest one."""
    steps = scene.steps
    nearest = int(np.abs(steps["step"].to_numpy() - step).argmin())
    return _around(steps[steps["step"] == steps["step"].iloc[nearest]].tail(1))


def _around(steps: pd.DataFrame) -> tuple[int, int]:
    start_ns, end_ns = int(steps["start_ns"].min()), int(steps["end_ns"].max())
    air = (end_ns - start_ns) // 80
    return start_ns - air, end_ns + air


def overview(steps: pd.DataFrame, origin_ns: int, *, most: int = OVERVIEW_STEPS) -> dict[str, Sequence[Any]]:
    """Return all steps of the run in at most ``most`` columns; a column of several steps shows the slowest."""
    every = max(1, -(-len(steps) // most))
    first = np.arange(0, len(steps), every)
    longest = np.maximum.reduceat(steps["step_time_s"].to_numpy(), first) if len(first) else np.zeros(0)
    last = np.minimum(first + every, len(steps)) - 1
    return {
        "step": [int(s) for s in steps["step"].to_numpy()[first]],
        "start": ((steps["start_ns"].to_numpy()[first] - origin_ns) / 1e3).tolist(),
        "end": ((steps["end_ns"].to_numpy()[last] - origin_ns) / 1e3).tolist(),
        "length": (longest * 1e6).tolist(),
    }


def cut_places(scene: Scene) -> list[dict[str, Any]]:
    """Return for each plan that held in the run its first step, its cuts, and where it begins, in microseconds.

    A plan whose first step is not among the steps of the scene begins with the next one that is; where none is left, nowhere.
    """
    places = []
    for first, words in scene.cuts:
        later = scene.steps["start_ns"][scene.steps["step"] >= first]
        at_us = (int(later.min()) - scene.start_ns) / 1e3 if len(later) else None
        places.append({"step": first, "cuts": words, "at": at_us})
    return places


def _lane(lane: Lane, silent: frozenset[int]) -> dict[str, Any]:
    return {
        "rank": lane.rank,
        "replica": lane.replica,
        "stages": list(lane.stages),
        "label": lane.label,
        "stage_label": lane.stage_label,
        "short": "s" + ",".join(map(str, lane.stages)) if lane.stages else "–",
        "missing": lane.rank in silent,
    }
