"""Timeline: the live Gantt of one run, with loss and step time below it."""

import streamlit as st

from dashboard.charts.curves import curve_chart
from dashboard.charts.numbers import duration, number, percent
from dashboard.components.gantt import gantt, last_view
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, refresh, refresh_every, say, say_waiting, state_badge
from dashboard.timeline_message import Jump, Scene, build_message, step_window
from dashboard.view_state import ViewState
from pptoolkit.analysis.liveness import RunState

WHAT = "Each row is a rank, each bar one op of one micro-batch; hatched is a bubble: the rank could compute and does not."
STEPS_SHOWN = (1, 2, 4, 8)


def page() -> None:
    run = choose_run("Timeline", WHAT)
    if run is None:
        return
    _read_address(run)
    st.fragment(_live, run_every=refresh_every(run))(run)


def _read_address(run: WatchedRun) -> None:
    """Take ``?step=N`` of the address as the first jump of this session."""
    if st.session_state.get("jump_run") == run.name:
        return
    st.session_state["jump_run"], st.session_state["jump_serial"] = run.name, st.session_state.get("jump_serial", 0) + 1
    text = st.query_params.get("step", "")
    st.session_state["step"] = int(text) if text.isdecimal() and len(text) < 10 else None


def _jumped() -> None:
    st.session_state["jump_serial"] += 1


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    _numbers(run)
    jump = _controls(run)
    key = f"gantt-{run.name}"
    view = last_view(key)
    scene = _scene(run, view, jump)
    if scene is None:
        say_waiting(run, "No rank has finished a step yet.")
        return
    if scene.silent:
        ranks = ", ".join(str(rank) for rank in sorted(scene.silent)[:12]) + (" and more" if len(scene.silent) > 12 else "")
        say(":material/visibility_off:", "These ranks have sent nothing yet; their rows stay empty:", ranks)
    gantt(build_message(scene, view, jump), key=key)
    _curves(run)


def _scene(run: WatchedRun, view: ViewState | None, jump: Jump) -> Scene | None:
    """Read no more of the run than what is looked at."""
    if view is not None and view.jump == jump.token:
        if view.follow:
            return run.scene(newest=jump.steps + 1)
        margin = (view.to_us - view.from_us) / 2
        return run.scene(around=(int((view.from_us - margin) * 1e3), int((view.to_us + margin) * 1e3)))
    scene = run.scene(newest=jump.steps + 1)
    if scene is None or jump.step is None:
        return scene
    start_ns, end_ns = step_window(scene, jump.step)
    return run.scene(around=(start_ns - scene.start_ns, end_ns - scene.start_ns))


def _controls(run: WatchedRun) -> Jump:
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
    if step is None:
        st.query_params.pop("step", None)
    elif st.query_params.get("step") != str(step):
        st.query_params["step"] = str(step)
    return Jump(token=f"{run.name}/{st.session_state['jump_serial']}", step=None if step is None else int(step), steps=int(shown or 2))


def _numbers(run: WatchedRun) -> None:
    brief, info, liveness = run.brief(), run.info, run.liveness()
    asked = f" of {info.steps}" if info.steps else ""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        state_badge(run)
        for name, value in (
            ("steps", f"{brief.steps_done}{asked}"),
            ("loss", number(brief.loss)),
            ("step time", duration(brief.step_time_s)),
            ("bubble", percent(brief.bubble_ratio)),
            ("the schedule's own", percent(info.schedule_bubble_ratio or None)),
            ("samples/s", f"{brief.samples_per_s:,.0f}" if brief.samples_per_s else "–"),
        ):
            st.markdown(f":gray[{name}] **{value}**", width="content")
    if liveness.reason and liveness.state in (RunState.FAILED, RunState.STALLED, RunState.STOPPED):
        st.text(liveness.reason)


def _curves(run: WatchedRun) -> None:
    losses, times = run.losses(), run.step_times()
    if times.empty:
        return
    left, right = st.columns(2)
    with left:
        if len(losses):
            st.altair_chart(curve_chart({run.name: losses}, "loss", title="loss"), key="loss-curve", height=190)
        else:
            st.caption("No rank has reported a loss yet.")
    with right:
        st.altair_chart(curve_chart({run.name: times}, "step_time_s", title="step time, ms", factor=1e3), key="step-time-curve", height=190)
