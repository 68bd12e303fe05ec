"""Rebalance: today's cuts and better ones on the layer strip, the predicted step time, and a button that writes the next plan."""

import shlex
from collections.abc import Mapping

import pandas as pd
import streamlit as st

from dashboard.charts.intervals import StepTime, interval_chart, interval_rows
from dashboard.charts.numbers import duration, percent, size
from dashboard.charts.palette import CAUSE_COLORS, STATE_COLORS
from dashboard.charts.stacked import stacked_chart, stacked_rows
from dashboard.charts.strip import strip_chart, strip_rows
from dashboard.components.gantt import gantt, last_view
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, ink, offer_tables, refresh, refresh_every, say, say_waiting, section, show_chart
from dashboard.recuts import list_cuts
from dashboard.scenario import Scenario, memory_costs, own_scenario, simulate_scenario, step_parts
from dashboard.simulated import op_rows, simulated_scene
from dashboard.timeline_message import Jump, Panel, build_message
from dashboard.views.own_plan import own_plan, predict_own
from dashboard.views.past_plans import show_history, show_recuts
from pptoolkit.analysis.statistics import Interval
from pptoolkit.errors import PPToolkitError
from pptoolkit.plan import Plan
from pptoolkit.planner.predict import PredictedStep
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.planner.suggest import NoChange, Suggestion, Suggestions
from pptoolkit.telemetry import RunInfo

WHAT = "Each box is a layer, as wide as it is costly. A step is as fast as its slowest stage, so good cuts make the stages alike."
PART_LABELS = {
    "compute": "compute, evenly spread",
    "schedule": "idle by the schedule",
    "imbalance": "stages not alike",
    "links": "messages",
    "step edges": "data, optimizer, collectives",
}
_CAUSES = [CAUSE_COLORS[cause] for cause in ("schedule", "imbalance", "link", "step_end")]
PART_COLORS = dict(zip(PART_LABELS.values(), (STATE_COLORS["compute"], *_CAUSES), strict=True))
BASELINE_LABELS = {
    "uniform": "same number of layers",
    "by_parameters": "same number of parameters",
    "block_partition": "torchgpipe's way, by time",
    "weighted_ends": "torchtitan's way, weighted ends",
}


def page() -> None:
    run = choose_run("Rebalance", WHAT)
    if run is not None:
        st.fragment(_live, run_every=2 * refresh_every(run))(run)


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    measured, found = run.measured_step(), run.suggestions()
    if measured is None:
        say_waiting(run, "There are no complete steps to plan from yet.")
        if found.no_change is not None:
            st.text(found.no_change.reason)
        return
    plans: dict[str, tuple[int, ...]] = {f"now: cuts {list_cuts(measured.plan.cuts)}": measured.plan.cuts}
    best = found[0].plan if len(found) else None
    if best is not None:
        _show_suggestion(found[0], found)
        plans[f"suggested: cuts {list_cuts(best.cuts)}"] = best.cuts
    else:
        _show_no_change(found.no_change or NoChange(reason="nothing was found", conclusive=False), found)
    names = [layer.name for layer in measured.layers.layers]
    show_chart(strip_chart(*strip_rows(names, measured.layers.compute_s, plans), ink=ink()), key="strip")
    scenario = own_plan(run, measured)
    if scenario is not None:
        plans["your own"] = scenario.cuts
    own = predict_own(run, measured, scenario)
    _apply(run, _to_apply(run.info, measured, found, own))
    section("Step time: measured, and what the simulator predicts")
    times = step_times(measured, found, own)
    show_chart(interval_chart(times), key="intervals")
    layers, _ = strip_rows(names, measured.layers.compute_s, plans)
    tables = {"layers by plan": layers.drop(columns="row"), "step times": interval_rows(times), **show_recuts(run)}
    tables |= _simulations(run, measured, best, scenario)
    tables |= show_history()
    offer_tables(run.name, tables)


def _simulations(run: WatchedRun, measured: MeasuredStep, best: Plan | None, own: Scenario | None) -> dict[str, pd.DataFrame]:
    """Draw where the step's time goes under each plan, and the simulated step of this run beside the one that is looked at.

    Returns:
        What is drawn as tables, by the name that they are saved under.
    """
    shown = {"now": own_scenario(measured)}
    if best is not None:
        shown["suggested"] = Scenario(cuts=best.cuts, schedule=best.schedule, micro_batches=best.micro_batches)
    if own is not None:
        shown["yours"] = own
    try:
        parts = {name: {PART_LABELS[p]: 1e3 * s for p, s in step_parts(measured, one).items()} for name, one in shown.items()}
        steps = {name: (one, simulate_scenario(measured, one)) for name, one in shown.items()}
    except PPToolkitError as error:
        say(":material/edit_off:", "This cannot be simulated:", str(error))
        return {}
    section("What the step is made of", "Simulated: compute spread evenly, then what each cause adds. A good plan has little but compute.")
    show_chart(stacked_chart(stacked_rows(parts), PART_COLORS, title="step time, ms"), key="waterfall")
    last = list(steps)[-1]
    pair = {name: steps[name] for name in dict.fromkeys(("now", last))}
    scenes = {name: simulated_scene(step, memory=memory_costs(measured, one.cuts)) for name, (one, step) in pair.items()}
    reach_us = max((scene.end_ns - scene.start_ns) / 1e3 for scene in scenes.values())
    for name, scene in scenes.items():
        peak = max(pair[name][1].memory_high_water_bytes, default=0)
        memory = f", at most {size(peak)} on a rank" if peak else ""
        section(f"Simulated step, {name}: {duration(pair[name][1].step_time_s)}{memory}")
        panel = Panel(still=True, plain=True, axis="time in step", reach_us=reach_us, levels=False, max_height_px=320, numbered=False)
        key = f"gantt-plan-{name}-{run.name}"
        gantt(build_message(scene, last_view(key), Jump(token=f"{reach_us:.0f}", window_us=(0.0, reach_us)), panel=panel), key=key)
    return {"what the steps are made of": stacked_rows(parts), "simulated ops": op_rows(scenes)}


def step_times(measured: MeasuredStep, found: Suggestions, own: PredictedStep | None) -> list[StepTime]:
    """Return the rows of the interval chart: measured first, then what is predicted, then other ways of cutting."""
    rows = [_row("this run, measured", "measured", measured.step_time)]
    if len(found):
        best = found[0]
        rows.append(
            StepTime(label="suggested cuts, predicted", kind="predicted", seconds=best.step_time_s, low_s=best.low_s, high_s=best.high_s)
        )
    if own is not None:
        rows.append(StepTime(label="your cuts, predicted", kind="predicted", seconds=own.step_time_s, low_s=own.low_s, high_s=own.high_s))
    baselines: Mapping[str, float] = found.baselines
    rows += [
        StepTime(label=f"{BASELINE_LABELS.get(name, name)}, predicted", kind="others", seconds=s, low_s=s, high_s=s)
        for name, s in baselines.items()
    ]
    return rows


def _row(label: str, kind: str, interval: Interval) -> StepTime:
    return StepTime(label=label, kind=kind, seconds=interval.median, low_s=interval.low, high_s=interval.high)


def _show_suggestion(best: Suggestion, found: Suggestions) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.badge(f"{percent(best.gain_ratio)} less time per step", icon=":material/trending_up:", color="green")
        st.markdown(f":gray[now] **{duration(found.step_time_s)}**", width="content")
        st.markdown(
            f":gray[predicted] **{duration(best.step_time_s)}** :gray[({duration(best.low_s)} to {duration(best.high_s)})]", width="content"
        )
        st.markdown(f":gray[bubble then] **{percent(best.bubble_ratio)}**", width="content")
        if found.replay_error_ratio is not None:
            st.markdown(f":gray[replay of this run is off by] **{percent(abs(found.replay_error_ratio))}**", width="content")
    st.text(best.sentence[:1].upper() + best.sentence[1:] + ".")


def _show_no_change(no_change: NoChange, found: Suggestions) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if no_change.conclusive:
            st.badge("no change: the cuts are good as they are", icon=":material/check:", color="green")
        else:
            st.badge("no advice yet", icon=":material/hourglass_empty:", color="gray")
        if found.step_time_s is not None:
            st.markdown(f":gray[step time] **{duration(found.step_time_s)}**", width="content")
    reason = no_change.reason.removeprefix("no change: ")
    st.text(reason[:1].upper() + reason[1:] + ".")


def _to_apply(info: RunInfo, measured: MeasuredStep, found: Suggestions, own: PredictedStep | None) -> dict[str, Plan]:
    """Return the plans that can be written, by what their button says."""
    plans = {"Apply to next run": found[0].plan} if len(found) else {}
    if own is not None and (own.plan.cuts, own.plan.schedule) != (measured.plan.cuts, measured.plan.schedule):
        prediction = own.as_prediction(baseline_step_time_s=measured.step_time.median)
        plans["Apply your own"] = own.plan.evolve(fingerprint=info.fingerprint, prediction=prediction)
    return plans


def _apply(run: WatchedRun, plans: dict[str, Plan]) -> None:
    if not plans:
        return
    target = run.path / "next-plan.toml"
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        for label, plan in plans.items():
            first = label == next(iter(plans))
            if st.button(label, key=f"apply-{label}", type="primary" if first else "secondary", icon=":material/save:"):
                st.session_state["applied"] = _write(run.name, plan, target)
        st.text(f"writes {target}", width="content")
    run_name, cuts, error = st.session_state.get("applied", ("", (), ""))
    if run_name != run.name:
        return
    if error:
        say(":material/error:", "The plan was not written:", error)
        return
    st.success(f"The plan with cuts {', '.join(map(str, cuts))} is written. Train with it, from the same seed:", icon=":material/check:")
    st.code(next_command(run.info, str(target)), language="bash")


def _write(name: str, plan: Plan, target: object) -> tuple[str, tuple[int, ...], str]:
    try:
        plan.save(str(target))
    except PPToolkitError as error:
        return name, plan.cuts, str(error)
    return name, plan.cuts, ""


def next_command(info: RunInfo, plan_path: str) -> str:
    """Return the command that trains with the plan: the run's own config, if its command names one."""
    words = list(info.command)
    after = words[words.index("train") + 1 :] if "train" in words else []
    config = next((word for word in after if word.endswith(".toml") and not word.startswith("-")), "CONFIG")
    return f"pptoolkit train {shlex.quote(config)} --plan {shlex.quote(plan_path)}"
