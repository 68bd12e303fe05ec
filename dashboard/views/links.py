"""Links and memory: how fast tensors travel against what the link can do, how long ranks wait, and who holds how much memory."""

from typing import Any

import altair as alt
import pandas as pd
import streamlit as st

from dashboard.charts.limits import Against, limit_chart
from dashboard.charts.numbers import duration, size
from dashboard.charts.palette import RUN_COLORS, STATE_COLORS
from dashboard.charts.stacked import stacked_chart, stacked_rows
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, offer_tables, refresh, refresh_every, say, say_waiting, section, show_chart
from dashboard.memory import RankMemory, by_micro_batch, rank_memory, read_limits
from pptoolkit.analysis.links import LinkMeasure

WHAT = "What crosses each border between stages: how fast, against the idle link; and what each rank holds, against what it has."
MOST_BARS = 40
_COLORS = {"waiting for the sender": STATE_COLORS["recv_wait"], "under way": "#56b4e9"}


def page() -> None:
    run = choose_run("Links and memory", WHAT)
    if run is not None:
        st.fragment(_live, run_every=2 * refresh_every(run))(run)


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    report = run.report()
    if not report.usable_steps:
        say_waiting(run, "There are no complete steps to take statistics from yet.")
        return
    _links(report.links, report.usable_steps)
    tables = _memory(run)
    if report.links:
        tables["links"] = link_rows(report.links)
    if tables:
        offer_tables(run.name, tables)


def _links(links: tuple[LinkMeasure, ...], steps: int) -> None:
    section(
        "Throughput",
        "Median over the usable steps, per border and direction; the mark is what the idle link could do before the first step.",
    )
    if not links:
        st.text("There is one stage, so nothing crosses a border; or no message was recorded at both of its ends.")
        return
    known = [link for link in links if link.throughput is not None]
    if known:
        show_chart(
            limit_chart(throughput_bars(known[:MOST_BARS]), title="MiB per second", value="measured", limit="idle link"), key="throughput"
        )
    else:
        say(
            ":material/info:",
            "No border has a sample that can be trusted: either every tensor was there before it was wanted, or it travelled faster "
            "than the clocks can tell. Then links do not hold this run up.",
        )
    section(
        "Where a message's time goes", "Mean per step. Waiting for the sender is no fault of the link: the tensor was not computed yet."
    )
    show_chart(
        stacked_chart(stacked_rows(wait_bars(links[:MOST_BARS], steps=steps)), _COLORS, title="ms per step, all messages of the border"),
        key="waits",
    )
    st.dataframe(
        link_rows(links),
        key="links",
        hide_index=True,
        column_config=_link_columns(),
        placeholder="–",
        alt="One row per border and direction",
    )


def link_label(link: LinkMeasure) -> str:
    """Return ``"0 → 1, activations"``."""
    return f"stage {link.src_stage} → {link.dst_stage}, {link.kind}s"


def throughput_bars(links: list[LinkMeasure]) -> list[Against]:
    """Return one bar a border and direction, in MiB/s."""
    mib = 1 << 20
    return [
        Against(
            label=link_label(link),
            value=link.throughput.median / mib,
            low=link.throughput.low / mib,
            high=link.throughput.high / mib,
            limit=link.probe_bytes_per_second / mib if link.probe_bytes_per_second else None,
        )
        for link in links
        if link.throughput is not None
    ]


def wait_bars(links: tuple[LinkMeasure, ...], *, steps: int) -> dict[str, dict[str, float]]:
    """Return wait and transfer in ms a step, by border and direction, of the messages whose transfer could be seen.

    Args:
        links: Measures over ``steps`` steps.
        steps: How many.
    """
    bars = {}
    for link in links:
        under_way = link.transfer.median * link.samples / max(steps, 1) if link.transfer else 0.0
        bars[link_label(link)] = {"waiting for the sender": link.wait_s_per_step * 1e3, "under way": under_way * 1e3}
    return bars


def link_rows(links: tuple[LinkMeasure, ...]) -> pd.DataFrame:
    """Return the table of borders."""
    rows = [
        {
            "border": link_label(link),
            "message": size(link.bytes_per_message),
            "transfer": duration(link.transfer.median) if link.transfer else "no reliable sample",
            "throughput": link.throughput.median / (1 << 20) if link.throughput else None,
            "probe": link.probe_bytes_per_second / (1 << 20) if link.probe_bytes_per_second else None,
            "share": 100 * link.throughput.median / link.probe_bytes_per_second
            if link.throughput and link.probe_bytes_per_second
            else None,
            "wait": link.wait_s_per_step * 1e3,
            "samples": link.samples,
            "unblocked": link.unblocked,
            "unreliable": link.unreliable,
        }
        for link in links
    ]
    return pd.DataFrame(rows, columns=list(_link_columns()))


def _link_columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "border": column.TextColumn("border", width="medium"),
        "message": column.TextColumn("message", width="small"),
        "transfer": column.TextColumn("under way", width="small"),
        "throughput": column.NumberColumn("measured", format="%.1f MiB/s"),
        "probe": column.NumberColumn("idle link", format="%.1f MiB/s"),
        "share": column.NumberColumn("of the idle link", format="%.0f %%"),
        "wait": column.NumberColumn("waiting for the sender", format="%.2f ms/step"),
        "samples": column.NumberColumn("samples", help="Receives that blocked, and longer than the clocks are unsure"),
        "unblocked": column.NumberColumn("was there before", help="Receives whose tensor had arrived unseen"),
        "unreliable": column.NumberColumn(
            "unreliable",
            help="Shorter than three times the clock uncertainty, or between GPUs, where nobody sees when a message is under way",
        ),
    }


def _memory(run: WatchedRun) -> dict[str, pd.DataFrame]:
    """Show what each rank holds; return the tables for saving."""
    section(
        "Memory per rank",
        "The peak over the usable steps. What is left to the limit is what deeper pipelines or larger micro-batches can use.",
    )
    events = run.steady_events()
    found = rank_memory(events, run.info, read_limits(run.path))
    if not found:
        st.text("No rank has measured its memory.")
        return {}
    mib = 1 << 20
    bars = [
        Against(label=m.label, value=m.peak_bytes / mib, limit=m.limit_bytes / mib if m.limit_bytes else None) for m in found[:MOST_BARS]
    ]
    show_chart(limit_chart(bars, title="MiB", value="peak", limit="limit"), key="memory")
    if not any(m.limit_bytes for m in found):
        st.caption("No limit is known: the ranks have not written how much memory their device or host has.")
    st.dataframe(memory_rows(found), key="memory-table", hide_index=True, placeholder="–", alt="One row per rank")
    section(
        "Memory by micro-batch", "What a rank holds while it computes the forward of each micro-batch; a line that keeps rising is a leak."
    )
    by_batch = by_micro_batch(events)
    show_chart(_micro_batch_chart(by_batch), key="memory-micro-batch")
    return {"memory by micro-batch": by_batch, "memory by rank": memory_rows(found)}


def memory_rows(found: tuple[RankMemory, ...]) -> pd.DataFrame:
    """Return the table of ranks, as words with units."""
    return pd.DataFrame(
        [
            {
                "rank": m.label,
                "always": size(m.least_bytes),
                "per micro-batch": size(m.per_micro_batch_bytes),
                "in flight": m.in_flight,
                "peak": size(m.peak_bytes),
                "limit": size(m.limit_bytes) if m.limit_bytes else "not known",
            }
            for m in found
        ]
    )


def _micro_batch_chart(rows: pd.DataFrame) -> alt.Chart:
    data = rows[rows["rank"].isin(sorted(rows["rank"].unique())[:12])].assign(row=lambda d: [f"rank {r}" for r in d["rank"]])
    names = list(dict.fromkeys(data.sort_values("rank")["row"]))
    chart: alt.Chart = (
        alt.Chart(data)
        .mark_line(point=True, strokeWidth=2)
        .encode(
            x=alt.X("micro_batch:Q", title="micro-batch", axis=alt.Axis(format="d", tickMinStep=1, grid=False)),
            y=alt.Y("mib:Q", title="MiB", scale=alt.Scale(zero=True)),
            color=alt.Color(
                "row:N",
                scale=alt.Scale(domain=names, range=[RUN_COLORS[i % len(RUN_COLORS)] for i in range(len(names))]),
                legend=alt.Legend(title=None, orient="top", columns=6),
            ),
            tooltip=[alt.Tooltip("row:N", title="rank"), alt.Tooltip("micro_batch:Q"), alt.Tooltip("mib:Q", title="MiB", format=".4~g")],
        )
        .properties(height=270)
    )
    return chart
