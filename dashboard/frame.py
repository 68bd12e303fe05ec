"""What every page shares: the runs folder, which run is looked at, the head of the page, and sentences for when there is nothing.

Names of runs, layers and hosts come from files. They reach the page through ``st.text``, tables, options and charts only: none of
these reads Markdown or HTML. Sentences in Markdown are always our own.
"""

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.catalogue import Catalogue, Unreadable, settle
from dashboard.charts.numbers import duration, size
from dashboard.charts.palette import INK
from dashboard.charts.spec import spec_of
from dashboard.data import WatchedRun
from pptoolkit.analysis.liveness import RunState
from pptoolkit.errors import PPToolkitError

REFRESH_S = 1.0
STATE_BADGES: dict[RunState, tuple[str, str]] = {
    RunState.WAITING: (":material/hourglass_empty:", "gray"),
    RunState.RUNNING: (":material/play_arrow:", "blue"),
    RunState.STALLED: (":material/warning:", "orange"),
    RunState.FINISHED: (":material/check:", "green"),
    RunState.FAILED: (":material/error:", "red"),
    RunState.STOPPED: (":material/stop:", "gray"),
}


def runs_root() -> Path:
    """Return the folder named on the command line: ``streamlit run dashboard/app.py -- RUNS``; default ``runs``."""
    return Path(sys.argv[1] if len(sys.argv) > 1 else "runs")


@st.cache_resource(show_spinner=False)
def _catalogue(root: str) -> Catalogue:
    settle()
    return Catalogue(Path(root))


def catalogue() -> Catalogue:
    return _catalogue(str(runs_root()))


def head(title: str, what: str) -> None:
    """Write the page's name and, in one line, what one is looking at. Both are Markdown: never names from files."""
    with st.container(gap=None):
        st.markdown(f"#### {title}")
        st.caption(what)


def ink() -> str:
    """Return the colour of text in charts that the present theme asks for."""
    return INK["dark" if st.context.theme.type == "dark" else "light"]


def section(title: str, what: str = "") -> None:
    """Write the name of a part of the page and what it shows; both are Markdown: never names from files."""
    with st.container(gap=None):
        st.markdown(f"##### {title}")
        if what:
            st.caption(what)


def choose_run(title: str, what: str) -> WatchedRun | None:
    """Write the page's head with the run to look at beside it; None, with a sentence on the page, where there is none."""
    left, right = st.columns([3, 1.4], vertical_alignment="bottom")
    with left:
        head(title, what)
    runs, unreadable = catalogue().look()
    if not runs:
        say_no_runs(unreadable)
        return None
    by_name = {run.name: run for run in runs}
    wanted = st.session_state.get("run") or st.query_params.get("run")
    if wanted is not None and wanted not in by_name:
        say(":material/search_off:", "There is no readable run of this name here; the newest one is shown instead:", str(wanted))
    current = wanted if wanted in by_name else runs[0].name
    # The run is part of the key: a field that another page or an interrupted run left behind cannot bring its old choice back.
    key = f"choice {title} {current}"
    with right:
        names = list(by_name)
        st.selectbox("Run", names, index=names.index(current), key=key, on_change=_chosen, args=(key,), label_visibility="collapsed")
    st.session_state["run"] = current
    if st.query_params.get("run") != current:
        st.query_params["run"] = current
    return by_name[current]


def _chosen(key: str) -> None:
    st.session_state["run"] = st.session_state[key]
    for name in ("step", "window"):  # they were of another run
        st.query_params.pop(name, None)


def say(icon: str, sentence: str, detail: str = "") -> None:
    """Write a calm sentence, and below it text from elsewhere, letter by letter."""
    with st.container(border=True, gap="xsmall"):
        st.markdown(f"{icon} {sentence}".strip())
        if detail:
            st.text(detail)


def say_no_runs(unreadable: list[Unreadable]) -> None:
    if unreadable:
        say(":material/folder_off:", "No run here can be read:", "\n".join(run.reason for run in unreadable))
    else:
        say(
            ":material/hourglass_empty:",
            "There are no runs yet. The first one shows up here by itself as soon as a training begins; start one with "
            "`pptoolkit train examples/gpt.toml --nproc 2`. Looking in:",
            str(runs_root().absolute()),
        )


def say_waiting(run: WatchedRun, what: str) -> None:
    """Say that ``run`` has nothing to show yet, and why."""
    liveness = run.liveness()
    if run.is_live():
        say(":material/hourglass_empty:", f"{what} This page fills by itself.", liveness.reason)
    else:
        say(":material/do_not_disturb_on:", f"{what} The run ended before.", liveness.reason)


def refresh(run: WatchedRun) -> bool:
    """Read what is new of a run; False, with a sentence on the page, if it cannot be read."""
    try:
        run.refresh()
    except PPToolkitError as error:
        say(":material/error:", "This run cannot be read at the moment:", str(error))
        return False
    return True


def refresh_every(run: WatchedRun) -> float:
    """Return the seconds between refreshes of a run's page: an ended run may still be continued, but need not be asked often."""
    return REFRESH_S if run.is_live() else 5 * REFRESH_S


def show_chart(chart: alt.Chart | alt.LayerChart, *, key: str, height: int | Literal["content"] = "content") -> None:
    """Show a chart over the whole width; its menu saves it as PNG or SVG."""
    # Streamlit leaves air around legends and axes for a page with one chart; here several stand under each other.
    close = chart.properties(padding={"left": 0, "top": 4, "right": 6, "bottom": 0})
    close = close.configure_axis(labelPadding=8, titlePadding=8).configure_axisY(labelFlush=False)
    close = close.configure_legend(offset=8, padding=2, symbolOpacity=1)
    st.vega_lite_chart(spec_of(close), key=key, width="stretch", height=height)


def table(rows: pd.DataFrame, *, key: str, **how: Any) -> None:
    """Show a table without an index; what is not known is a dash."""
    st.dataframe(rows, key=key, hide_index=True, placeholder="–", **how)


def offer_tables(run: str, tables: Mapping[str, pd.DataFrame]) -> None:
    """Offer what the page's charts show as CSV files, by name. They are written only when they are asked for."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption("Save the data:", width="content")
        for name, table in tables.items():
            st.download_button(
                name,
                data=partial(_as_csv, table),
                file_name=f"{run}-{name.replace(' ', '-')}.csv",
                mime="text/csv",
                key=f"csv-{name}",
                type="tertiary",
                icon=":material/download:",
                on_click="ignore",
            )


def _as_csv(table: pd.DataFrame) -> str:
    return str(table.to_csv(index=False))


def loss_badges(run: WatchedRun) -> None:
    """Say what of the telemetry is missing; nothing where all is there."""
    dropped, skipped = sum(beat.dropped for beat in run.heartbeats()), run.skipped()
    if dropped:
        st.badge(f"{dropped:,} events dropped", icon=":material/data_loss_prevention:", color="orange")
    if skipped.bytes:
        st.badge(f"{size(skipped.bytes)} unreadable", icon=":material/broken_image:", color="orange")


def state_badge(run: WatchedRun) -> None:
    """Write the state, how fresh it is and, where something is wrong, why."""
    liveness = run.liveness()
    icon, color = STATE_BADGES[liveness.state]
    st.badge(liveness.state.value, icon=icon, color=color)  # type: ignore[arg-type]
    seen_s = run.last_sign_unix_s()
    if seen_s and run.is_live():
        age_s = max(0.0, time.time() - seen_s)
        st.badge(
            "fresh" if age_s < 7 else f"last sign {age_s:.0f} s ago" if age_s < 120 else f"last sign {duration(age_s)} ago",
            color="gray" if age_s < 15 else "orange",
        )
