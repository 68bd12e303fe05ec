"""What-if: the simulator with sliders, on what was measured of a run. Nothing here is written anywhere."""

import streamlit as st

from dashboard.charts.numbers import duration, percent, size
from dashboard.components.gantt import gantt, last_view
from dashboard.cuts import read_cuts
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, offer_tables, refresh, say, say_waiting, section
from dashboard.scenario import Scenario, best_cuts, fitting_schedules, memory_costs, own_scenario, scenario_rows, simulate_scenario
from dashboard.simulated import op_rows, simulated_scene
from dashboard.timeline_message import Jump, Panel, build_message
from pptoolkit.errors import PPToolkitError
from pptoolkit.planner.step_costs import MeasuredStep
from pptoolkit.simulator import SimulatedStep

WHAT = "What a step would be with other cuts, another schedule, slower links or a slow rank: simulated from this run's measured layers."
MOST_MICRO_BATCHES = 64


def page() -> None:
    run = choose_run("What-if", WHAT)
    if run is None or not refresh(run):
        return
    measured = run.measured_step()
    if measured is None or measured.layers.missing:
        say_waiting(run, "There are no complete steps with measured layers yet.")
        return
    scenario = _sliders(run, measured)
    if scenario is None:
        return
    try:
        now, then = simulate_scenario(measured, own_scenario(measured)), simulate_scenario(measured, scenario)
    except PPToolkitError as error:
        say(":material/edit_off:", "This cannot be simulated:", str(error))
        return
    _numbers(measured, now, then, scenario)
    _pictures(run, measured, now, then, scenario)


def _sliders(run: WatchedRun, measured: MeasuredStep) -> Scenario | None:
    plan, name = measured.plan, run.name
    layers = len(measured.layers.layers)
    schedules = fitting_schedules(measured.ranks, layers, plan.micro_batches)
    left, middle, right = st.columns(3, gap="large")
    with left:
        names = list(schedules) if plan.schedule in schedules else [plan.schedule, *schedules]
        schedule = st.selectbox("Schedule", names, index=names.index(plan.schedule), key=f"what-schedule-{name}")
        stages = schedules.get(schedule, plan.stages)
        if schedule == plan.schedule:
            stages = plan.stages
        text = st.text_input(
            "Cuts: the layer that begins each next stage",
            key=f"what-cuts-{name}-{stages}",
            placeholder=", ".join(map(str, best_cuts(measured, stages))),
            help=f"The model has {layers} layers; {schedule} needs {stages} stages on {measured.ranks} ranks.",
        )
    with middle:
        most = max(MOST_MICRO_BATCHES, 2 * plan.micro_batches)
        micro_batches = st.slider("Micro-batches, of the size they have", 1, most, plan.micro_batches, key=f"what-micro-{name}")
        factor = st.select_slider(
            "Links: messages take", (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0), 1.0, format_func=_times, key=f"what-link-{name}"
        )
    with right:
        slow = st.selectbox(
            "A slow rank",
            [None, *range(measured.ranks)],
            format_func=lambda r: "none" if r is None else f"rank {r}",
            key=f"what-slow-{name}",
        )
        slow_factor = st.slider("It computes so many times as long", 1.0, 4.0, 1.5, 0.1, key=f"what-factor-{name}", disabled=slow is None)
    try:
        cuts = read_cuts(text) if text and text.strip() else best_cuts(measured, stages)
    except ValueError as error:
        say(":material/edit_off:", "These cuts do not work:", str(error))
        return None
    return Scenario(cuts=cuts, schedule=schedule, micro_batches=micro_batches, link_factor=factor, slow_rank=slow, slow_factor=slow_factor)


def _times(factor: float) -> str:
    return "no time" if factor == 0 else "as measured" if factor == 1 else f"{factor:g} × as long"


def _numbers(measured: MeasuredStep, now: SimulatedStep, then: SimulatedStep, scenario: Scenario) -> None:
    """Compare per micro-batch: with more of them a step is longer and does more."""
    per_now, per_then = now.step_time_s / measured.plan.micro_batches, then.step_time_s / scenario.micro_batches
    change = per_then / per_now - 1
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if abs(change) < 5e-4:
            st.badge("as this run", icon=":material/drag_handle:", color="gray")
        elif change < 0:
            st.badge(f"{percent(-change)} less time per micro-batch", icon=":material/trending_up:", color="green")
        else:
            st.badge(f"{percent(change)} more time per micro-batch", icon=":material/trending_down:", color="orange")
        peak = max(then.memory_high_water_bytes, default=0)
        for name, value in (
            ("step", f"{duration(then.step_time_s)} :gray[(this run, simulated: {duration(now.step_time_s)})]"),
            ("bubble", f"{percent(then.bubble_ratio)} :gray[(this run: {percent(now.bubble_ratio)})]"),
            ("largest memory of a rank", size(peak) if peak else "not known"),
        ):
            st.markdown(f":gray[{name}] **{value.split(' :gray')[0]}**{_rest(value)}", width="content")
    error = now.step_time_s / measured.step_time.median - 1
    st.caption(f"The simulation of this run as it is misses its measured step by {percent(abs(error))}; expect no better of the others.")


def _rest(value: str) -> str:
    return f" :gray{value.split(' :gray')[1]}" if " :gray" in value else ""


def _pictures(run: WatchedRun, measured: MeasuredStep, now: SimulatedStep, then: SimulatedStep, scenario: Scenario) -> None:
    """Draw both steps on one scale."""
    scenes = [
        ("What if", simulated_scene(then, memory=memory_costs(measured, scenario.cuts)), then),
        ("This run, simulated", simulated_scene(now, memory=memory_costs(measured, measured.plan.cuts)), now),
    ]
    reach_us = max((scene.end_ns - scene.start_ns) / 1e3 for _, scene, _ in scenes)
    for place, (title, scene, step) in enumerate(scenes):
        section(f"{title}: {duration(step.step_time_s)}")
        panel = Panel(still=True, plain=place > 0, axis="time in step", reach_us=reach_us, max_height_px=380, numbered=False)
        key = f"gantt-what-{place}-{run.name}"
        jump = Jump(token=f"{reach_us:.0f}", window_us=(0.0, reach_us))
        gantt(build_message(scene, last_view(key), jump, panel=panel), key=key)
    asked = {"what if": (scenario, then), "as this run": (own_scenario(measured), now)}
    ops = op_rows({name: scene for name, (_, scene, _) in zip(asked, scenes, strict=True)})
    offer_tables(run.name, {"what if": scenario_rows(measured, asked), "simulated ops": ops})
