"""Live metrics: the runs that a Prometheus scrapes, without their run directories."""

import os
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.charts.palette import RUN_COLORS
from dashboard.charts.split import split_chart, split_rows
from dashboard.frame import head, offer_tables, say, section, show_chart, table
from dashboard.launch import TOKEN_VARIABLE
from dashboard.prometheus import DEFAULT_ADDRESS, Prometheus, curve_of, run_table, split_of
from pptoolkit.errors import MonitoringError

WHAT = "The runs that a Prometheus watches, on any host, as their ranks report them. The other pages read run directories."
REFRESH_S = 5.0  # Prometheus itself learns no more often
MINUTES = 30
MOST_RANKS = 32


def page() -> None:
    head("Live metrics", WHAT)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.text("Prometheus at", width="content")
        address = st.text_input("Prometheus at", key="prometheus", placeholder=DEFAULT_ADDRESS, label_visibility="collapsed", width=340)
    try:
        server = Prometheus((address or "").strip() or DEFAULT_ADDRESS)
    except MonitoringError as error:
        say(":material/link_off:", "This is no address:", str(error))
        return
    if os.environ.get(TOKEN_VARIABLE) and not server.on_loopback:
        # Visitors from elsewhere must not make this machine ask others for them.
        say(":material/lock:", "A dashboard that others can reach asks only a Prometheus on its own machine.")
        return
    st.fragment(_live, run_every=REFRESH_S)(server)


def _live(server: Prometheus) -> None:
    try:
        runs = run_table(server)
        if runs.empty:
            say(":material/hourglass_empty:", "Prometheus answers, but knows of no run yet. Give it the targets of your runs:")
            st.code("pptoolkit prometheus config --runs runs -o prometheus.yml", language="bash")
            return
        table(runs, key="prometheus-runs", column_config=_columns(), alt="One row per run")
        names = list(runs["run"])
        chosen = st.pills("Run", names, default=names[0], key="prometheus-run", label_visibility="collapsed", required=True)
        _one(server, str(chosen or names[0]))
    except MonitoringError as error:
        say(":material/link_off:", "Prometheus cannot be asked at the moment:", str(error))


def _one(server: Prometheus, run_id: str) -> None:
    section("Time of a step, rank by rank", "Mean over the last two minutes. Blue is useful work; whatever waits is waiting for something.")
    parts = split_of(server, run_id)
    tables: dict[str, pd.DataFrame] = {}
    if not parts:
        st.text("No rank of this run has done a step in the last two minutes.")
    else:
        shown = dict(sorted(parts.items())[:MOST_RANKS])
        tables["time by rank"] = split_rows(shown, {})
        show_chart(split_chart(tables["time by rank"]), key="prometheus-split")
    curve = curve_of(server, run_id, minutes=MINUTES)
    if len(curve) > 1:
        tables["step times"] = curve
        section("Step time", f"The slowest rank's, over the last {MINUTES} minutes.")
        show_chart(_curve_chart(curve), key="prometheus-curve")
    if tables:
        offer_tables(run_id, tables)


def _curve_chart(curve: pd.DataFrame) -> alt.Chart:
    data = curve.assign(at=pd.to_datetime(curve["unix_s"], unit="s", utc=True), ms=1e3 * curve["step_time_s"])
    tooltip = [alt.Tooltip("at:T", title="at", format="%H:%M:%S"), alt.Tooltip("ms:Q", title="step time, ms", format=".4~g")]
    chart: alt.Chart = (
        alt.Chart(data[["at", "ms"]])
        .mark_line(strokeWidth=2, color=RUN_COLORS[0])
        .encode(
            x=alt.X("at:T", title=None, axis=alt.Axis(format="%H:%M", grid=False, tickCount=6, labelOverlap=True)),
            y=alt.Y("ms:Q", title="step time, ms", scale=alt.Scale(zero=False), axis=alt.Axis(format=".4~g", tickCount=5)),
            tooltip=tooltip,
        )
        .properties(height=220)
    )
    return chart


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "run": column.TextColumn("run", width="medium"),
        "ranks": column.NumberColumn("ranks", format="%d", width="small"),
        "steps": column.NumberColumn("steps", format="%d", width="small"),
        "loss": column.NumberColumn("loss", format="%.4f", width="small"),
        "step_ms": column.NumberColumn("step time", format="%.1f ms", width="small", help="Mean over the last two minutes"),
        "bubble": column.NumberColumn("bubble", format="%.1f %%", width="small", help="Of the last step, mean over the ranks"),
        "samples_per_s": column.NumberColumn("samples/s", format="%.0f", width="small"),
        "last_step": column.NumberColumn("last step", format="%.0f s ago", width="small"),
        "last_sign": column.NumberColumn("last sign", format="%.0f s ago", width="small", help="Of the rank that is silent longest"),
        "dropped": column.NumberColumn("dropped", format="%d", width="small", help="Events that the telemetry had to drop"),
    }
