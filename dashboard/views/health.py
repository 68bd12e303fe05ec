"""Health: is every rank alive, what is each doing and since when, what is missing of the telemetry, how good the clocks are."""

import time
from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.numbers import size
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, loss_badges, refresh, refresh_every, say, say_waiting, section, state_badge
from dashboard.health import Alert, RankPulse, alerts, hang_report, pulses
from pptoolkit.analysis.liveness import RunState

WHAT = "Every rank writes a sign of life each second, also while it is stuck: alive without getting on is a hang."
ICONS = {"bad": ":material/error:", "warning": ":material/warning:", "note": ":material/info:"}
STATE_COLORS = {"alive": "#009e73", "silent": "#e69f00", "ended": "#8f8f99", "not seen": "#d55e00"}


def page() -> None:
    run = choose_run("Health", WHAT)
    if run is not None:
        st.fragment(_live, run_every=refresh_every(run))(run)


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    beats, liveness = run.heartbeats(), run.liveness()
    if not beats:
        say_waiting(run, "No rank has given a sign of life yet.")
        return
    found = pulses(run.info, beats, now_unix_s=time.time())
    told = alerts(
        run.info,
        liveness,
        found,
        skipped=run.skipped(),
        steps=run.step_times(),
        losses=run.losses(),
        uncertainty_s=run.clock_uncertainty_s(),
    )
    _headline(run, found, told)
    for alert in told:
        say(ICONS[alert.level], {"bad": "Needs attention:", "warning": "Look at this:", "note": "Good to know:"}[alert.level], alert.text)
    if liveness.state is RunState.STALLED or any((p.since_s or 0) > 30 for p in found):
        section("Who holds the run up", "From what each rank said last. A rank that computes or is silent holds up those that wait.")
        st.text("\n".join(hang_report(found)) or "No rank is long in one place.")
    section("Ranks")
    st.dataframe(
        pulse_rows(found),
        key="pulses",
        hide_index=True,
        column_config=_columns(),
        placeholder="–",
        height=_height(len(found)),
        alt="One row per rank",
    )
    _clocks(run)


def _headline(run: WatchedRun, found: tuple[RankPulse, ...], told: tuple[Alert, ...]) -> None:
    counts = {state: sum(p.state == state for p in found) for state in STATE_COLORS}
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        state_badge(run)
        loss_badges(run)
        for state, count in counts.items():
            if count:
                st.markdown(f":gray[ranks {state}] **{count}**", width="content")
        if not told:
            st.badge("nothing to report", icon=":material/check:", color="green")


def pulse_rows(found: tuple[RankPulse, ...]) -> pd.DataFrame:
    """Return the table of ranks; the ones that need a look first."""
    order = {"not seen": 0, "silent": 1, "alive": 2, "ended": 3}
    rows = [
        {
            "rank": p.rank,
            "stages": ", ".join(map(str, p.stages)) or "none",
            "state": [p.state],
            "age": p.age_s,
            "step": p.step,
            "doing": p.doing,
            "since": p.since_s,
            "memory": size(p.resident_bytes) if p.resident_bytes else None,
            "cpu": None if p.cpu_ratio is None else 100 * p.cpu_ratio,
            "dropped": p.dropped,
            "host": p.host,
        }
        for p in sorted(found, key=lambda p: (order[p.state], p.rank))
    ]
    return pd.DataFrame(rows, columns=list(_columns()))


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "rank": column.NumberColumn("rank", width="small"),
        "stages": column.TextColumn("stages", width="small"),
        "state": column.MultiselectColumn("state", options=list(STATE_COLORS), color=list(STATE_COLORS.values()), width="small"),
        "age": column.NumberColumn("last sign", format="%.1f s ago", width="small"),
        "step": column.NumberColumn("step", width="small"),
        "doing": column.TextColumn("doing", width="large"),
        "since": column.NumberColumn("for", format="%.1f s", width="small", help="How long the op in flight has been running"),
        "memory": column.TextColumn("process memory", width="small"),
        "cpu": column.NumberColumn("CPU", format="%.0f %%", width="small", help="Of all cores of the host, by this process"),
        "dropped": column.NumberColumn("dropped", format="%d", width="small", help="Events that the telemetry had to drop"),
        "host": column.TextColumn("host"),
    }


def _clocks(run: WatchedRun) -> None:
    uncertainty = run.clock_uncertainty_s()
    section(
        "Clocks", "How exactly each rank's clock is known against that of rank 0; a transfer shorter than three times this is not reported."
    )
    if not uncertainty:
        st.text("No rank has compared its clock with rank 0. On one host all ranks share a clock.")
        return
    rows = [{"rank": rank, "uncertainty": seconds * 1e6} for rank, seconds in uncertainty.items()]
    column = st.column_config
    columns = {
        "rank": column.NumberColumn("rank", width="small"),
        "uncertainty": column.NumberColumn("clock known to", format="± %.1f µs", width="medium"),
    }
    st.dataframe(
        pd.DataFrame(rows),
        key="clocks",
        hide_index=True,
        column_config=columns,
        height=_height(len(rows)),
        width=420,
        alt="One row per rank",
    )


def _height(rows: int) -> Any:
    return "content" if rows <= 16 else 600
