"""Health: is every rank alive, what is each doing and since when, what is missing of the telemetry, how good the clocks are."""

import time
from collections.abc import Mapping
from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.charts.limits import Against, limit_chart
from dashboard.charts.numbers import size
from dashboard.charts.ranks import rank_chart, rank_rows
from dashboard.data import WatchedRun
from dashboard.frame import (
    choose_run,
    loss_badges,
    offer_tables,
    refresh,
    refresh_every,
    say,
    say_waiting,
    section,
    show_chart,
    state_badge,
)
from dashboard.health import Alert, RankPulse, alerts, hang_report, pulses
from pptoolkit.analysis.liveness import RunState

WHAT = "Every rank writes a sign of life each second, also while it is stuck: alive without getting on is a hang."
TITLES = {
    "bad": ":red[:material/error: **Needs attention:**]",
    "warning": ":orange[:material/warning: **Look at this:**]",
    "note": ":blue[:material/info: **Good to know:**]",
}
MOST_BARS = 24  # of ranks in a chart: the worst ones
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
        say(TITLES[alert.level], "", alert.text)
    section("Ranks", "Each tile is a rank and what it said last. One that computes while all others wait is what they wait for.")
    show_chart(rank_chart(rank_rows(found)), key="ranks")
    if liveness.state is RunState.STALLED or any((p.since_s or 0) > 30 for p in found):
        section("Who holds the run up", "From what each rank said last. A rank that computes or is silent holds up those that wait.")
        st.text("\n".join(hang_report(found)) or "No rank is long in one place.")
    left, right = st.columns(2, gap="large")
    with left:
        _losses(run, found)
    with right:
        _clocks(run)
    section("Rank by rank")
    rows = pulse_rows(found)
    st.dataframe(
        rows,
        key="pulses",
        hide_index=True,
        column_config=_columns(),
        placeholder="–",
        height=_height(len(found)),
        alt="One row per rank",
    )
    tables = {"ranks": rows.assign(state=[p[0] for p in rows["state"]])}
    if uncertainty := run.clock_uncertainty_s():
        tables["clocks"] = pd.DataFrame({"rank": list(uncertainty), "uncertainty_us": [s * 1e6 for s in uncertainty.values()]})
    offer_tables(run.name, tables)


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
        "memory": column.TextColumn("memory", width="small", help="Of the process"),
        "cpu": column.NumberColumn("CPU", format="%.0f %%", width="small", help="Of all cores of the host, by this process"),
        "dropped": column.NumberColumn("dropped", format="%d", width="small", help="Events that the telemetry had to drop"),
        "host": column.TextColumn("host"),
    }


def _losses(run: WatchedRun, found: tuple[RankPulse, ...]) -> None:
    section("Telemetry", "What is missing of the events: dropped by a rank that could not keep up, or not readable on disk.")
    dropped, skipped = {p.rank: p.dropped for p in found if p.dropped}, run.skipped()
    if not dropped and not skipped.bytes and not skipped.notices:
        st.badge("nothing is missing", icon=":material/check:", color="green")
        return
    if dropped:
        show_chart(_worst(dropped, title="events dropped", what="events dropped"), key="dropped")
    if skipped.bytes or skipped.notices:
        st.text(f"{size(skipped.bytes)} of {skipped.files} event files could not be read.")


def _clocks(run: WatchedRun) -> None:
    uncertainty = run.clock_uncertainty_s()
    section("Clocks", "How exactly each rank's clock is known against rank 0's; a transfer shorter than three times this is not reported.")
    if not uncertainty:
        st.badge("one clock for all ranks", icon=":material/check:", color="green")
        st.text("No rank has compared its clock with rank 0. On one host all ranks share a clock.")
        return
    in_us = {rank: seconds * 1e6 for rank, seconds in uncertainty.items()}
    show_chart(_worst(in_us, title="known to ±, µs", what="clock known to ±, µs"), key="clocks")


def _worst(values: Mapping[int, float], *, title: str, what: str) -> alt.LayerChart:
    """Draw a bar for each rank; where there are many, for those with the largest values."""
    chosen = sorted(sorted(values, key=lambda rank: -values[rank])[:MOST_BARS])
    bars = [Against(label=f"rank {rank}", value=values[rank], limit=None) for rank in chosen]
    if len(values) > len(bars):
        st.caption(f"The {len(bars)} largest of {len(values)} ranks.")
    return limit_chart(bars, title=title, value=what, limit="")


def _height(rows: int) -> Any:
    return "content" if rows <= 16 else 600
