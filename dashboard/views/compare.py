"""Compare: two runs side by side: step time, whether the prediction held, whether training stayed the same."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.curves import curve_chart
from dashboard.charts.intervals import StepTime, interval_chart, interval_rows
from dashboard.charts.numbers import duration, percent
from dashboard.charts.palette import STATE_LABELS
from dashboard.components.gantt import gantt, last_view
from dashboard.data import WatchedRun
from dashboard.frame import catalogue, choose_run, offer_tables, refresh, refresh_every, say, section, show_chart
from dashboard.recuts import list_cuts
from dashboard.timeline_message import Jump, Panel, build_message
from pptoolkit.analysis.segments import info_at
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.compare import Comparison, LossComparison

WHAT = "One run against an earlier one: is it faster, did the predicted gain arrive, and are the losses still the same?"


def page() -> None:
    after = choose_run("Compare", WHAT)
    if after is None:
        return
    runs, _ = catalogue().look()
    others = {run.name: run for run in runs if run.name != after.name}
    if not others:
        say(":material/compare_arrows:", "There is only one run. A second one makes a comparison.")
        return
    names = list(others)
    parent = after.info.parent
    key = f"before-{after.name}"
    if st.session_state.get(key) not in others:
        st.session_state[key] = parent if parent in others else names[0]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text("compared with", width="content")
        before = st.selectbox("Compared with", names, key=key, label_visibility="collapsed", width=420)
    pace = min(refresh_every(after), refresh_every(others[before]))
    st.fragment(_live, run_every=2 * pace)(others[before], after)


def _live(before: WatchedRun, after: WatchedRun) -> None:
    if not (refresh(before) and refresh(after)):
        return
    try:
        comparison = after.compare_with(before)
    except PPToolkitError as error:
        say(":material/hourglass_empty:", "Their step times cannot be compared yet:", str(error))
        _losses(before, after, None)
        return
    section("Step time")
    _headline(comparison)
    times = step_times(comparison)
    show_chart(interval_chart(times), key="compare-intervals")
    _timelines(before, after)
    _losses(before, after, comparison.losses)
    section("Where the difference comes from", "Time of a step by what the ranks do in it, mean over the ranks.")
    rows = difference_rows(comparison)
    st.dataframe(rows, key="difference", hide_index=True, column_config=_columns(), alt="One row per part of the step")
    losses = pd.concat([run.losses().assign(run=run.name) for run in (before, after)], ignore_index=True)
    offer_tables(after.name, {"step times": interval_rows(times), "difference": rows, "losses": losses})


def _headline(comparison: Comparison) -> None:
    gain = comparison.gain_ratio
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if not comparison.is_significant:
            st.badge("no difference beyond the noise", icon=":material/drag_handle:", color="gray")
        elif gain > 0:
            st.badge(f"{percent(gain)} less time per step", icon=":material/trending_up:", color="green")
        else:
            st.badge(f"{percent(-gain)} more time per step", icon=":material/trending_down:", color="orange")
        check = comparison.prediction
        if check is not None:
            st.markdown(f":gray[predicted gain] **{percent(check.predicted_gain_ratio)}**", width="content")
            where = "inside" if check.within else "outside"
            st.markdown(
                f":gray[achieved step time is] **{percent(abs(check.error_ratio))}** :gray[from the predicted one, {where} its interval]",
                width="content",
            )


def _timelines(before: WatchedRun, after: WatchedRun) -> None:
    """Draw the same step of both runs, one above the other, on one scale."""
    common = sorted(set(before.step_numbers()) & set(after.step_numbers()))
    if not common:
        return
    section("The same step in both", "Both begin at the left edge and have one scale: what is shorter is faster.")
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text("step", width="content")
        step = st.number_input("Step", common[0], common[-1], common[-1], key="compare-step", label_visibility="collapsed", width=130)
    scenes = [(run, run.step_scene(int(step))) for run in (before, after)]
    known = [(run, scene) for run, scene in scenes if scene is not None]
    reach_us = max((scene.end_ns - scene.start_ns) / 1e3 for _, scene in known) if known else 0.0
    for place, (run, scene) in enumerate(known):
        cuts = list_cuts(info_at(run.info, int(step)).read_plan().cuts)
        st.text(f"{run.name}, cuts {cuts}: {duration((scene.end_ns - scene.start_ns) / 1e9)}")
        key = f"gantt-compare-{place}-{run.name}"
        panel = Panel(still=True, plain=True, axis="time in step", reach_us=reach_us, levels=False, max_height_px=300)
        jump = Jump(token=f"{step}/{reach_us:.0f}", window_us=(0.0, reach_us))
        gantt(build_message(scene, last_view(key), jump, panel=panel), key=key)


def step_times(comparison: Comparison) -> list[StepTime]:
    """Return before, predicted where the plan made a prediction, and after."""
    rows = [_side("before", comparison.before.step_time.median, comparison.before.step_time.low, comparison.before.step_time.high)]
    if comparison.prediction is not None:
        p = comparison.prediction.predicted
        rows.append(StepTime(label="predicted for this run", kind="predicted", seconds=p.step_time_s, low_s=p.low_s, high_s=p.high_s))
    rows.append(
        _side("this run, achieved", comparison.after.step_time.median, comparison.after.step_time.low, comparison.after.step_time.high)
    )
    return rows


def _side(label: str, seconds: float, low_s: float, high_s: float) -> StepTime:
    return StepTime(label=label, kind="measured", seconds=seconds, low_s=low_s, high_s=high_s)


def difference_rows(comparison: Comparison) -> pd.DataFrame:
    """Return the accounting of both runs in ms, without the parts that neither has."""
    rows = []
    for state, label in STATE_LABELS.items():
        before, after, difference = comparison.accounting.get(state, (0.0, 0.0, 0.0))
        if before or after:
            rows.append({"part": label, "before": before * 1e3, "after": after * 1e3, "difference": difference * 1e3})
    totals = [sum(row[name] for row in rows) for name in ("before", "after", "difference")]  # type: ignore[misc]
    rows.append({"part": "whole step", "before": totals[0], "after": totals[1], "difference": totals[2]})
    return pd.DataFrame(rows)


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "part": column.TextColumn("part of the step"),
        "before": column.NumberColumn("before", format="%.2f ms"),
        "after": column.NumberColumn("this run", format="%.2f ms"),
        "difference": column.NumberColumn("difference", format="%+.2f ms"),
    }


def _losses(before: WatchedRun, after: WatchedRun, losses: LossComparison | None) -> None:
    frames = {run.name: run.losses() for run in (before, after)}
    frames = {name: frame for name, frame in frames.items() if len(frame)}
    section("Loss")
    if not frames:
        say(":material/hourglass_empty:", "Neither run has reported a loss yet.")
        return
    st.text(loss_sentence(losses))
    show_chart(curve_chart(frames, "loss", title="loss"), key="compare-loss", height=230)


def loss_sentence(losses: LossComparison | None) -> str:
    """Say how far the losses agree."""
    if losses is None:
        return "The runs have no step with a loss in common yet."
    if losses.max_relative_difference == 0:
        return f"The losses of all {losses.steps} common steps are equal, digit by digit."
    if losses.equal_digits >= 5:
        return f"The losses of all {losses.steps} common steps agree to {losses.equal_digits} digits: the cut did not change training."
    return (
        f"The losses agree to {losses.equal_digits} digits over {losses.steps} common steps; they differ most in step {losses.worst_step}, "
        f"by {percent(losses.max_relative_difference)}. Another seed, batch or data set does that; another cut alone does not."
    )
