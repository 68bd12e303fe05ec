"""From a timeline and the person's view to the message for the canvas: which window, which rows, which words and colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from dashboard.charts.palette import BUBBLE_LABEL, OP_STYLES
from dashboard.view_state import ViewState
from dashboard.window import Lane, build_window
from dashboard.wire import encode

DEFAULT_WIDTH_PX = 1280
MAX_HEIGHT_PX = 560
OVERVIEW_STEPS = 600
_PHASES = ({"label": "warm-up", "shape": "rise"}, {"label": "steady", "shape": "flat"}, {"label": "cool-down", "shape": "fall"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Everything the Gantt can show of a run at one moment.

    Args:
        timeline: Events on one clock, with rank, replica and attempt.
        steps: One row a step, in order of time: step, start_ns, end_ns, step_time_s.
        lanes: Rows.
        silent: Ranks of the layout that have sent nothing.
    """

    timeline: pd.DataFrame
    steps: pd.DataFrame
    lanes: tuple[Lane, ...]
    silent: frozenset[int] = frozenset()

    @property
    def start_ns(self) -> int:
        return int(self.steps["start_ns"].min())

    @property
    def end_ns(self) -> int:
        return int(self.steps["end_ns"].max())


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """What the page asks the canvas to show: a step, or the newest ones.

    Args:
        token: Changes with every request; the canvas then gives up its own view.
        step: Step to fit into the view; None: follow the newest.
        steps: How many steps to show while following.
    """

    token: str
    step: int | None = None
    steps: int = 2


def build_message(scene: Scene, view: ViewState | None, jump: Jump, *, max_height_px: int = MAX_HEIGHT_PX) -> bytes:
    """Return the message for what the person looks at, with half as much on either side, so that a drag finds bars at once."""
    width_px = view.width_px if view is not None else DEFAULT_WIDTH_PX
    answered = view is not None and view.jump == jump.token  # else the canvas has not seen this jump yet
    follow = view.follow if view is not None and answered else jump.step is None
    if view is not None and answered and not view.follow:
        start_ns, end_ns = scene.start_ns + int(view.from_us * 1e3), scene.start_ns + int(view.to_us * 1e3)
    else:
        start_ns, end_ns = newest_window(scene, jump.steps) if follow or jump.step is None else step_window(scene, jump.step)
    margin = (end_ns - start_ns) // 2
    window = build_window(scene.timeline, scene.lanes, start_ns=start_ns - margin, end_ns=end_ns + margin, width_px=2 * width_px)
    header = {
        "origin_us": (window.origin_ns - scene.start_ns) / 1e3,
        "loaded": [(start_ns - margin - scene.start_ns) / 1e3, (end_ns + margin - scene.start_ns) / 1e3],
        "view": [(start_ns - scene.start_ns) / 1e3, (end_ns - scene.start_ns) / 1e3],
        "extent": [0.0, (scene.end_ns - scene.start_ns) / 1e3],
        "jump": jump.token,
        "follow": jump.step is None,
        "width": width_px,
        "pixel_us": window.pixel_ns / 1e3,
        "merged": bool((window.bars["count"] > 1).any()),
        "events": window.events,
        "last_step": int(scene.steps["step"].iloc[-1]),
        "max_height": max_height_px,
        "lanes": [_lane(lane, scene.silent) for lane in scene.lanes],
        "ops": {
            int(op): {"label": s.label, "letter": s.letter, "color": s.color, "ink": s.ink, "thin": s.thin} for op, s in OP_STYLES.items()
        },
        "bubble": BUBBLE_LABEL,
        "phases": _PHASES,
        "overview": overview(scene.steps, scene.start_ns),
    }
    return encode(window, header)


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
    every = -(-len(steps) // most)
    first = np.arange(0, len(steps), every)
    longest = np.maximum.reduceat(steps["step_time_s"].to_numpy(), first) if len(first) else np.zeros(0)
    last = np.minimum(first + every, len(steps)) - 1
    return {
        "step": [int(s) for s in steps["step"].to_numpy()[first]],
        "start": ((steps["start_ns"].to_numpy()[first] - origin_ns) / 1e3).tolist(),
        "end": ((steps["end_ns"].to_numpy()[last] - origin_ns) / 1e3).tolist(),
        "length": (longest * 1e6).tolist(),
    }


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
