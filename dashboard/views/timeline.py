"""Timeline: the live Gantt of one run, with loss and step time below it."""

import streamlit as st

from dashboard.charts.curves import curve_chart, step_time_chart
from dashboard.charts.numbers import duration, number, percent
from dashboard.components.gantt import gantt, last_view
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, loss_badges, offer_tables, refresh, refresh_every, say, say_waiting, show_chart, state_badge
from dashboard.recuts import cut_marks
from dashboard.simulated import simulated_scene
from dashboard.timeline_message import Jump, Panel, Scene, build_message, step_window
from dashboard.view_state import ViewState
from pptoolkit.analysis.liveness import RunState

WHAT = "Each row is a rank, each bar one op of one micro-batch; hatched is a bubble: the rank could compute and does not."
STEPS_SHOWN = (1, 2, 4, 8)
EQUAL_STAGES, OWN_MEDIANS = "equal stages", "own medians"
IDEALS = {
    EQUAL_STAGES: "The schedule's ideal: equal stages and free links",
    OWN_MEDIANS: "Without jitter: every op takes its stage's own median",
}


def page() -> None:
    run = choose_run("Timeline", WHAT)
    if run is None:
        return
    _read_address(run)
    st.fragment(_live, run_every=refresh_every(run))(run)


def _read_address(run: WatchedRun) -> None:
    """Take ``?step=N`` or ``?window=BEGIN-END`` (microseconds in the run) of the address as the first jump of this session."""
    if st.session_state.get("jump_run") == run.name:
        return
    st.session_state["jump_run"], st.session_state["jump_serial"] = run.name, st.session_state.get("jump_serial", 0) + 1
    text = st.query_params.get("step", "")
    st.session_state["step"] = int(text) if text.isdecimal() and len(text) < 10 else None
    st.session_state["window"] = read_window(st.query_params.get("window", ""))


def read_window(text: str) -> tuple[float, float] | None:
    """Read ``"1500-2500"``; None if it is no window."""
    parts = text.split("-")
    if len(parts) != 2 or not all(part.isdecimal() and len(part) < 16 for part in parts):
        return None
    begin, end = (float(part) for part in parts)
    return (begin, end) if end > begin else None


def _jumped() -> None:
    st.session_state["jump_serial"] += 1
    st.session_state["window"] = None


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    _numbers(run)
    jump, ideal = _controls(run)
    key = f"gantt-{run.name}"
    view = last_view(key)
    scene = _scene(run, view, jump)
    if scene is None:
        say_waiting(run, "No rank has finished a step yet.")
        return
    if scene.silent:
        ranks = ", ".join(str(rank) for rank in sorted(scene.silent)[:12]) + (" and more" if len(scene.silent) > 12 else "")
        say(":material/visibility_off:", "These ranks have sent nothing yet; their rows stay empty:", ranks)
    _write_address(view, jump)
    gantt(build_message(scene, view, jump, panel=Panel(live=run.is_live())), key=key)
    if ideal is not None:
        _beside(run, scene, ideal)
    _curves(run)


def _write_address(view: ViewState | None, jump: Jump) -> None:
    """Keep what is looked at in the address, so that it can be sent to somebody."""
    window = ""
    if view is not None and view.jump == jump.token:
        window = "" if view.follow or view.from_us < 0 else f"{view.from_us:.0f}-{view.to_us:.0f}"
    elif jump.window_us is not None:
        window = f"{jump.window_us[0]:.0f}-{jump.window_us[1]:.0f}"
    if not window:
        st.query_params.pop("window", None)
    elif st.query_params.get("window") != window:
        st.query_params["window"] = window


def _beside(run: WatchedRun, scene: Scene, ideal: str) -> None:
    """Draw the simulated step below the measured one, both on one scale."""
    step = run.ideal_step(own_medians=ideal == OWN_MEDIANS)
    if step is None:
        say(":material/hourglass_empty:", "There are no complete steps yet that a simulation could be made from.")
        return
    median_s = run.brief().step_time_s
    other = simulated_scene(step)
    simulated_us = (other.end_ns - other.start_ns) / 1e3
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(f"**{IDEALS[ideal]}**", width="content")
        st.markdown(f":gray[simulated step] **{duration(step.step_time_s)}**", width="content")
        if median_s:
            st.markdown(f":gray[measured, median] **{duration(median_s)}**", width="content")
        st.markdown(f":gray[bubble then] **{percent(step.bubble_ratio)}**", width="content")
    longest_us = 1e6 * float(scene.steps["step_time_s"].tail(1).iloc[0])
    panel = Panel(
        still=True, plain=True, axis="time in step", reach_us=max(longest_us, simulated_us), levels=False, max_height_px=400, numbered=False
    )
    key = f"gantt-ideal-{run.name}-{ideal}"
    jump = Jump(token=f"{ideal}/{panel.reach_us:.0f}", window_us=(0.0, panel.reach_us))
    gantt(build_message(other, last_view(key), jump, panel=panel), key=key)


def _scene(run: WatchedRun, view: ViewState | None, jump: Jump) -> Scene | None:
    """Read no more of the run than what is looked at."""
    if view is not None and view.gaps == "cause":
        run.learn_usual_times()
    if view is not None and view.jump == jump.token:
        if view.follow:
            return run.scene(newest=jump.steps + 1)
        margin = (view.to_us - view.from_us) / 2
        return run.scene(around=(int((view.from_us - margin) * 1e3), int((view.to_us + margin) * 1e3)))
    if jump.window_us is not None:
        return run.scene(around=(int(jump.window_us[0] * 1e3), int(jump.window_us[1] * 1e3)))
    scene = run.scene(newest=jump.steps + 1)
    if scene is None or jump.step is None:
        return scene
    start_ns, end_ns = step_window(scene, jump.step)
    return run.scene(around=(start_ns - scene.start_ns, end_ns - scene.start_ns))


def _controls(run: WatchedRun) -> tuple[Jump, str | None]:
    """Draw the page's own controls; zoom, pan and follow are the canvas' own."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text("Go to step", width="content")
        step = st.number_input(
            "Go to step",
            min_value=0,
            step=1,
            value=None,
            key="step",
            on_change=_jumped,
            placeholder="newest",
            label_visibility="collapsed",
            width=130,
        )
        st.text("While following, show the last", width="content")
        shown = st.segmented_control("Steps shown", STEPS_SHOWN, default=2, key="steps_shown", label_visibility="collapsed", required=True)
        st.text("steps", width="content")
        st.text("Beside it, simulated:", width="content")
        ideal = st.pills("Beside it", list(IDEALS), format_func=lambda name: name, key="ideal", label_visibility="collapsed")
    if step is None:
        st.query_params.pop("step", None)
    elif st.query_params.get("step") != str(step):
        st.query_params["step"] = str(step)
    token = f"{run.name}/{st.session_state['jump_serial']}"
    jump = Jump(token=token, step=None if step is None else int(step), steps=int(shown or 2), window_us=st.session_state.get("window"))
    return jump, ideal


def _numbers(run: WatchedRun) -> None:
    brief, info, liveness = run.brief(), run.info, run.liveness()
    asked = f" of {info.steps}" if info.steps else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        state_badge(run)
        loss_badges(run)
        for name, value in (
            ("steps", f"{brief.steps_done}{asked}"),
            ("loss", number(brief.loss)),
            ("step time", duration(brief.step_time_s)),
            ("bubble", percent(brief.bubble_ratio)),
            ("the schedule's own", percent(info.schedule_bubble_ratio or None)),
            ("samples/s", f"{brief.samples_per_s:,.0f}" if brief.samples_per_s else "–"),
            *((("cuts", "{1} since step {0}".format(*marks[-1])),) if (marks := cut_marks(info)) else ()),
        ):
            st.markdown(f":gray[{name}] **{value}**", width="content")
    if liveness.reason and liveness.state in (RunState.FAILED, RunState.STALLED, RunState.STOPPED):
        st.text(liveness.reason)


def _curves(run: WatchedRun) -> None:
    """Draw loss and step time over all steps."""
    losses, times = run.curves()
    if times.empty:
        return
    left, right = st.columns(2)
    with left:
        if len(losses):
            show_chart(curve_chart({run.name: losses}, "loss", title="loss"), key="loss-curve", height=190)
        else:
            st.caption("No rank has reported a loss yet.")
    with right:
        show_chart(step_time_chart({run.name: times}), key="step-time-curve", height=190)
    offer_tables(run.name, {"losses": losses, "step times": times})
