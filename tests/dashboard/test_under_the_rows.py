"""What the canvas shows beside the bars: levels, bubbles by kind, the critical path, and only when it is asked for."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from dashboard.bubble_kinds import KINDS, build_gaps
from dashboard.levels import IN_FLIGHT, MEMORY, build_levels, in_flight
from dashboard.simulated import ideal_step, simulated_scene
from dashboard.timeline_message import Jump, Panel, Scene, build_message, critical_paths
from dashboard.view_state import ViewState
from dashboard.wire import decode_groups
from pptoolkit.analysis.bubbles import find_bubbles
from pptoolkit.schedule import build_schedule
from pptoolkit.simulator import schedule_bubble_ratio

VIEW = ViewState(from_us=0, to_us=50_000, follow=False, width_px=900, jump="x")


@pytest.fixture
def scene() -> Scene:
    return simulated_scene(ideal_step(build_schedule("1f1b", ranks=4, micro_batches=8), forward_s=1e-3, backward_s=2e-3))


def within(scene: Scene) -> dict[str, int]:
    return {"origin_ns": scene.start_ns, "start_ns": scene.start_ns, "end_ns": scene.end_ns}


@pytest.mark.parametrize(("schedule", "peaks"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8, 8, 8, 8])])
def test_the_peak_of_what_is_in_flight_is_the_schedules(schedule: str, peaks: list[int]) -> None:
    made = simulated_scene(ideal_step(build_schedule(schedule, ranks=4, micro_batches=8), forward_s=1e-3, backward_s=2e-3))
    levels = pd.DataFrame(build_levels(made.timeline, made.lanes, **within(made)))
    flight = levels[levels["kind"] == IN_FLIGHT]
    assert flight.groupby("lane")["value"].max().tolist() == peaks
    assert flight.groupby("lane")["value"].last().tolist() == [0, 0, 0, 0]


def test_under_zero_bubble_an_activation_is_held_until_its_weight_pass() -> None:
    made = simulated_scene(ideal_step(build_schedule("zb-h1", ranks=4, micro_batches=8), forward_s=1e-3, backward_s=2e-3))
    _, values = in_flight(made.timeline[made.timeline["rank"] == 0])
    assert values.max() == 4
    assert values[-1] == 0


def test_memory_that_was_not_measured_has_no_curve(scene: Scene) -> None:
    levels = build_levels(scene.timeline, scene.lanes, **within(scene))
    assert MEMORY not in levels["kind"]


def test_a_peak_survives_when_a_long_curve_is_thinned_out(timeline: pd.DataFrame, scene: Scene) -> None:
    levels = pd.DataFrame(build_levels(timeline, scene.lanes, origin_ns=0, start_ns=0, end_ns=1 << 62, points=5))
    memory = levels[(levels["kind"] == MEMORY) & (levels["lane"] == 0)]
    assert len(memory) <= 5
    assert memory["value"].max() == timeline.loc[timeline["rank"] == 0, "memory_bytes"].max()


def test_coloured_bubbles_are_the_gaps_that_analysis_finds(scene: Scene) -> None:
    gaps = build_gaps(scene.timeline, scene.lanes, **within(scene))
    found = find_bubbles(scene.timeline)
    assert gaps["length"].sum() / 1e6 == pytest.approx(found["duration_s"].sum(), rel=1e-5)
    assert {KINDS[kind].name for kind in np.unique(gaps["kind"])} == set(found["doing"])


def test_the_critical_path_of_equal_stages_is_as_long_as_the_step(scene: Scene) -> None:
    (path,) = critical_paths(scene, scene.start_ns, scene.end_ns)
    assert sum(end - start for _, start, end in path) == pytest.approx((scene.end_ns - scene.start_ns) / 1e3, rel=1e-6)


def test_what_nobody_asks_for_is_not_computed(scene: Scene) -> None:
    jump = Jump(token="x")
    header, groups = decode_groups(build_message(scene, VIEW, jump))
    assert header["path"] == []
    assert "gaps" not in groups
    assert "levels" in groups
    header, groups = decode_groups(build_message(scene, replace(VIEW, path=True, gaps=True, levels=False), jump))
    assert len(header["path"]) == 1
    assert len(header["gap_kinds"]) == len(KINDS)
    assert "levels" not in groups


def test_two_gantts_of_one_reach_have_one_scale(scene: Scene) -> None:
    header, _ = decode_groups(build_message(scene, None, Jump(token="a", window_us=(0, 9e6)), panel=Panel(still=True, reach_us=9e6)))
    assert header["extent"] == [0.0, 9e6]
    assert header["view"] == [0.0, 9e6]
    assert header["overview"]["start"] == []


def test_the_ideal_step_is_idle_as_much_as_the_schedule_says() -> None:
    schedule = build_schedule("1f1b", ranks=4, micro_batches=8)
    step = ideal_step(schedule, forward_s=1e-3, backward_s=2e-3)
    assert step.bubble_ratio == pytest.approx(schedule_bubble_ratio(schedule))
