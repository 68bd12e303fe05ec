"""Bubbles by cause: gap by gap what the analysis says of the whole step."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dashboard.bubble_causes import CauseFinder, split_gaps, usual_seconds
from dashboard.bubble_kinds import CAUSE_KINDS, build_cause_gaps
from dashboard.charts.palette import CAUSE_COLORS
from dashboard.timeline_message import Jump, Scene, build_message
from dashboard.view_state import ViewState
from dashboard.window import lanes_of
from dashboard.wire import decode_groups
from pptoolkit.analysis.causes import CAUSES, split_bubble
from pptoolkit.analysis.replay import build_replay
from pptoolkit.analysis.steps import SteadySteps, steady_steps, step_windows
from tests.dashboard.conftest import read_timeline
from tests.dashboard.synthetic import SyntheticRun
from tests.dashboard.test_palette import VISION, lab

LANES = lanes_of((0, 1, 2, 3), ranks=4)


def one_step(timeline: pd.DataFrame, step: int) -> SteadySteps:
    return steady_steps(timeline[timeline["step"] == step].reset_index(drop=True), ranks=4)


def scene_of(timeline: pd.DataFrame) -> Scene:
    return Scene(timeline=timeline, steps=step_windows(timeline, ranks=4), lanes=LANES)


def test_the_gaps_of_a_rank_sum_to_what_the_analysis_says_of_it(timeline: pd.DataFrame) -> None:
    replay = build_replay(one_step(timeline, 3))
    assert replay is not None
    gaps, whole = split_gaps(replay, {}, origin_ns=0), split_bubble(replay)
    for rank, parts in whole.per_rank.items():
        mine = gaps[gaps["rank"] == rank]
        assert {cause: float(mine[cause].sum()) for cause in CAUSES} == pytest.approx(parts, abs=1e-9)
    assert gaps[list(CAUSES)].sum(axis=1).to_numpy() == pytest.approx((gaps["end_ns"] - gaps["start_ns"]) / 1e9, abs=2e-9)


def test_the_causes_of_bubbles_stand_where_they_are(tmp_path: Path) -> None:
    timeline = read_timeline(SyntheticRun(root=tmp_path, run_id="uneven", jitter=0.0, transfer_s=0.0).train(3))
    gaps = CauseFinder().of_step(timeline, scene_of(timeline).steps.iloc[[2]])
    assert gaps is not None
    gaps = gaps[gaps["end_ns"] - gaps["start_ns"] > 500_000]
    found = {int(rank): {CAUSES[c] for c in mine["cause"]} for rank, mine in gaps.groupby("rank")}
    # The last stage holds the head and is the slowest: the others wait for it because the stages are not alike.
    assert all("imbalance" in found[rank] for rank in range(3))
    # It waits itself only before its first and after its last micro-batch, which no cut can change.
    assert found[3] == {"schedule"}


def test_a_step_that_is_slower_than_usual_is_jitter(timeline: pd.DataFrame) -> None:
    usual = usual_seconds(steady_steps(timeline, ranks=4))
    step = scene_of(timeline).steps.iloc[[4]]
    fast = {key: 0.5 * seconds for key, seconds in usual.items()}
    as_usual, slower = CauseFinder(usual).of_step(timeline, step), CauseFinder(fast).of_step(timeline, step)
    assert as_usual is not None
    assert slower is not None
    assert slower["jitter"].sum() > 10 * abs(as_usual["jitter"].sum())


def test_an_incomplete_or_endless_step_is_left_without_a_cause(timeline: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = scene_of(timeline).steps
    window = {"origin_ns": 0, "start_ns": int(steps["start_ns"].min()), "end_ns": int(steps["end_ns"].max())}
    monkeypatch.setattr("dashboard.bubble_causes.MOST_EVENTS", 10)
    gaps, kinds, unknown = build_cause_gaps(timeline, LANES, steps, CauseFinder(), **window)
    assert (len(gaps["start"]), unknown) == (0, len(steps))
    assert {kind.total for kind in kinds} == {""}


def test_a_step_that_some_rank_has_not_finished_is_asked_for_again(timeline: pd.DataFrame) -> None:
    finder = CauseFinder()
    early = timeline[(timeline["rank"] != 2) | (timeline["step"] != 5)]
    assert finder.of_step(early, scene_of(early).steps.iloc[[5]]) is None
    late = finder.of_step(timeline, scene_of(timeline).steps.iloc[[5]])
    assert late is not None
    assert set(late["rank"]) == {0, 1, 2, 3}
    assert finder.of_step(timeline, scene_of(timeline).steps.iloc[[5]]) is late


def test_the_message_carries_causes_only_when_they_are_asked_for(timeline: pd.DataFrame) -> None:
    scene, jump = scene_of(timeline), Jump(token="a", window_us=(0.0, 300_000.0))
    view = ViewState(from_us=0, to_us=300_000, follow=False, width_px=900, jump="a", levels=False)
    _, groups = decode_groups(build_message(scene, view, jump))
    assert "gaps" not in groups
    asked = ViewState(from_us=0, to_us=300_000, follow=False, width_px=900, jump="a", levels=False, gaps="cause")
    header, groups = decode_groups(build_message(scene, asked, jump))
    assert [kind["word"] for kind in header["gap_kinds"]] == [cause.replace("_", " ") for cause in CAUSES]
    assert set(groups["gaps"]["kind"]) <= set(range(len(CAUSE_KINDS)))
    assert groups["gaps"]["share"].max() <= 100
    totals = [float(kind["total"].rstrip(" %")) for kind in header["gap_kinds"] if kind["total"]]
    assert 20 < sum(totals) < 60


@pytest.mark.parametrize("vision", VISION)
def test_any_two_causes_are_told_apart(vision: str) -> None:
    for a, b in itertools.combinations(CAUSES, 2):
        distance = float(np.linalg.norm(lab(CAUSE_COLORS[a], VISION[vision]) - lab(CAUSE_COLORS[b], VISION[vision])))
        assert distance > 20, f"{a} and {b} are {distance:.0f} apart under {vision}"
