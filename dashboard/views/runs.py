"""Runs: all runs below the folder, with state, progress, speed, plan, and what they gained over their parent."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.curves import curve_chart, step_time_chart, thin_out
from dashboard.charts.gains import gain_chart, gain_rows
from dashboard.data import WatchedRun
from dashboard.frame import REFRESH_S, catalogue, head, offer_tables, runs_root, say, say_no_runs, section, show_chart
from pptoolkit.analysis.liveness import RunState
from pptoolkit.analysis.segments import segments_of
from pptoolkit.errors import PPToolkitError

WHAT = "Every training job below the runs folder, the newest first. Select a row (at its left edge) to open its timeline."
_LOSS_POINTS = 40
BAD = (RunState.FAILED, RunState.STALLED)
CURVES = 5  # runs whose curves are overlaid
STATE_COLORS = {
    "running": "#0072b2",
    "finished": "#009e73",
    "waiting": "#8f8f99",
    "stopped": "#8f8f99",
    "stalled": "#e69f00",
    "failed": "#d55e00",
    "unreadable": "#d55e00",
}


def page() -> None:
    if "open" in st.session_state:
        st.session_state["run"] = st.session_state.pop("open")
        st.switch_page(st.session_state["pages"]["timeline"])
    head("Runs", WHAT)
    st.fragment(_live, run_every=REFRESH_S)()


def _live() -> None:
    runs, unreadable = catalogue().look()
    if not runs:
        say_no_runs(unreadable)
        return
    rows = run_rows(runs)
    event = st.dataframe(
        rows,
        key="runs-table",
        hide_index=True,
        column_config=_columns(),
        on_select="rerun",
        selection_mode="single-row",
        height="content" if len(rows) <= 18 else 680,
        placeholder="–",
        alt="One row per run",
    )
    chosen = event.get("selection", {}).get("rows", [])
    if chosen and chosen[0] < len(rows):
        # The page is left by a run of the whole script: a fragment that leaves it stays behind as a timer.
        st.session_state["open"] = str(rows["run"].iloc[chosen[0]])
        st.rerun(scope="app")
    _say_what_went_wrong(runs)
    for run in unreadable:
        say(":material/error:", "One run cannot be read:", f"{run.name}: {run.reason}")
    st.text(f"{len(rows)} {'run' if len(rows) == 1 else 'runs'} in the folder {runs_root()}")
    gains = gain_rows(rows)
    if len(gains):
        section("Gained over the parent", "Time per step that each run saves over the run that its plan came from, and what was promised.")
        show_chart(gain_chart(gains), key="gains")
    section("The newest runs")
    _curves(runs[:CURVES])
    offer_tables("runs", {"runs": rows.drop(columns="curve").assign(state=rows["state"].str.join(" "))})


def _say_what_went_wrong(runs: list[WatchedRun]) -> None:
    """Give the reason of the newest runs that failed or stand still."""
    states = [(run.name, run.liveness()) for run in runs[:CURVES]]
    bad = [f"{name} {liveness.state.value}: {liveness.reason}" for name, liveness in states if liveness.state in BAD and liveness.reason]
    if bad:
        st.text("\n".join(bad))


def _curves(runs: list[WatchedRun]) -> None:
    """Overlay the newest runs: the same losses in less time is what better cuts look like."""
    losses = {run.name: run.losses() for run in runs}
    times = {run.name: run.step_times() for run in runs}
    left, right = st.columns(2)
    losses, times = ({name: frame for name, frame in frames.items() if len(frame)} for frames in (losses, times))
    if losses:
        with left:
            show_chart(curve_chart(losses, "loss", title="loss"), key="runs-loss", height=300)
    if times:
        with right:
            show_chart(step_time_chart(times), key="runs-step_time_s", height=300)


def run_rows(runs: list[WatchedRun]) -> pd.DataFrame:
    """Return the table's rows; what is not known yet is empty."""
    rows = []
    for run in runs:
        try:
            run.refresh()
            rows.append(_row(run))
        except PPToolkitError as error:  # of one run; the others are still worth showing
            rows.append({"run": run.name, "state": ["unreadable"]})
            say(":material/error:", "One run cannot be read at the moment:", f"{run.name}: {error}")
    table = pd.DataFrame(rows, columns=list(_columns()))
    step_ms = dict(zip(table["run"], table["step_ms"], strict=True))
    before = table["parent"].map(lambda parent: step_ms.get(parent))
    table["gain"] = (1 - table["step_ms"].astype(float) / before.astype(float)) * 100
    return table


def _row(run: WatchedRun) -> dict[str, object]:
    brief, info, liveness, losses = run.brief(), run.info, run.liveness(), run.losses()
    plan = info.read_plan()
    # What a re-cut promised was promised against the run's own steps before it.
    prediction = plan.prediction if len(segments_of(info)) == 1 else None
    return {
        "run": run.name,
        "state": [liveness.state.value],
        "progress": 100 * brief.steps_done / info.steps if info.steps else None,
        "loss": brief.loss,
        "curve": thin_out(losses, "loss", most=_LOSS_POINTS)["loss"].tolist() if len(losses) else None,
        "step_ms": None if brief.step_time_s is None else brief.step_time_s * 1e3,
        "bubble": None if brief.bubble_ratio is None else brief.bubble_ratio * 100,
        "plan": f"{plan.schedule}, {plan.micro_batches} micro-batches, cuts {', '.join(map(str, plan.cuts)) or 'none'}",
        "parent": info.parent,
        "predicted": 100 * (1 - prediction.step_time_s / prediction.baseline_step_time_s) if prediction else None,
    }


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "run": column.TextColumn("run", width=210),
        "state": column.MultiselectColumn("state", options=list(STATE_COLORS), color=list(STATE_COLORS.values()), width="small"),
        "progress": column.ProgressColumn("progress", format="%.0f %%", min_value=0, max_value=100, width=130),
        "loss": column.NumberColumn("loss", format="%.4f", width="small"),
        "curve": column.LineChartColumn("loss so far", width=100),
        "step_ms": column.NumberColumn("step time", format="%.1f ms", width="small", help="Median over the usable steps"),
        "bubble": column.NumberColumn(
            "bubble", format="%.1f %%", width="small", help="Share of the ranks' time in which nothing is computed"
        ),
        "gain": column.NumberColumn("gain", format="%+.1f %%", width="small", help="Time per step saved over the parent"),
        "predicted": column.NumberColumn("predicted", format="%+.1f %%", width="small", help="The gain that the planner promised"),
        "plan": column.TextColumn("plan", width=225),
        "parent": column.TextColumn("parent", width="medium", help="The run whose suggestion this one applies"),
    }
