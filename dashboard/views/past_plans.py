"""What became of earlier plans, on the Rebalance page: the re-cuts inside this run, and the plans that were applied to later ones."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.intervals import interval_chart
from dashboard.charts.numbers import duration, percent
from dashboard.data import WatchedRun
from dashboard.frame import catalogue, section, show_chart, table
from dashboard.history import history_rows, history_times
from dashboard.recuts import Recut, list_cuts, recut_rows, recut_times

MOST_RECUTS = 6  # in the picture: the newest ones


def show_recuts(run: WatchedRun) -> dict[str, pd.DataFrame]:
    """List the re-cuts of the run, where there are any; return the table for saving."""
    recuts = run.recuts()
    if not recuts:
        return {}
    section(
        "Cut anew while it trained",
        "This run changes its own cuts when that pays: the step time before, what the new cuts promised, and what came.",
    )
    _newest(recuts[-1])
    show_chart(interval_chart(recut_times(recuts[-MOST_RECUTS:])), key="recuts-picture")
    rows = recut_rows(recuts)
    table(rows[list(_recut_columns())], key="recuts", column_config=_recut_columns(), alt="One row per re-cut")
    for recut in recuts:
        if recut.sentence:
            st.text(f"Cut anew before {recut.sentence}.")
    return {"re-cuts": rows}


def _newest(recut: Recut) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.markdown(f":gray[last at step] **{recut.step}**", width="content")
        st.markdown(f":gray[cuts] **{list_cuts(recut.before)}** :gray[became] **{list_cuts(recut.after)}**", width="content")
        if recut.check is None:
            st.badge("not measured yet", icon=":material/hourglass_empty:", color="gray")
            return
        st.markdown(f":gray[achieved] **{duration(recut.check.achieved.median)}**", width="content")
        where = "inside" if recut.check.within else "outside"
        off = percent(abs(recut.check.error_ratio))
        st.markdown(f":gray[that is] **{off}** :gray[from the predicted step time, {where} its interval]", width="content")


def _recut_columns() -> dict[str, Any]:
    column = st.column_config
    ms = "%.1f ms"
    return {
        "step": column.NumberColumn("from step", format="%d", width="small"),
        "before": column.TextColumn("cuts before"),
        "after": column.TextColumn("cuts after"),
        "left_ms": column.NumberColumn("step before", format=ms, help="Median over the usable steps under the cuts that were left"),
        "predicted_ms": column.NumberColumn("predicted step", format=ms),
        "achieved_ms": column.NumberColumn("achieved step", format=ms, help="Median over the usable steps under the new cuts"),
        "error": column.NumberColumn("off by", format="%+.1f %%", help="Achieved against predicted"),
        "within": column.TextColumn("inside its interval"),
        "moving_s": column.NumberColumn("moving took", format="%.2f s"),
        "moved_mib": column.NumberColumn("moved", format="%.1f MiB", help="Parameters and optimizer state that went from rank to rank"),
    }


def show_history() -> dict[str, pd.DataFrame]:
    """Show the plans that came from a suggestion: what was promised, and what came; return the table for saving."""
    rows = history_rows(catalogue().look()[0])
    if rows.empty:
        return {}
    section("Applied plans", "Every run here whose plan carries a prediction: the promise with its interval, and what came.")
    show_chart(interval_chart(history_times(rows)), key="history-picture")
    column = st.column_config
    columns = {
        "run": column.TextColumn("run"),
        "parent": column.TextColumn("planned from"),
        "plan": column.TextColumn("plan"),
        "predicted": column.NumberColumn("predicted step", format="%.1f ms"),
        "achieved": column.NumberColumn("achieved step", format="%.1f ms"),
        "gain_predicted": column.NumberColumn("predicted gain", format="%+.1f %%"),
        "gain_achieved": column.NumberColumn("achieved gain", format="%+.1f %%"),
        "within": column.TextColumn("inside its interval"),
    }
    table(rows[list(columns)], key="history", column_config=columns, alt="One row per applied plan")
    return {"applied plans": rows}
