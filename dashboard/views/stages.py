"""Stages: where each rank's time goes, what each stage computes, and which one sets the pace."""

from typing import Any

import pandas as pd
import streamlit as st

from dashboard.charts.heat import heat_chart, heat_rows
from dashboard.charts.numbers import duration, percent, size
from dashboard.charts.palette import OP_STYLES
from dashboard.charts.split import split_chart, split_rows
from dashboard.charts.spread import spread_chart, spread_rows
from dashboard.charts.stacked import stacked_chart, stacked_rows
from dashboard.data import WatchedRun
from dashboard.frame import choose_run, offer_tables, refresh, refresh_every, say, say_waiting, section, show_chart
from pptoolkit.analysis.layer_costs import LayerCosts
from pptoolkit.analysis.stages import StageRow
from pptoolkit.planner.report import Report
from pptoolkit.telemetry.events import Op

MOST_LAYERS = 40
WHAT = "Where the time of a step goes on each rank, and which stage sets the pace for all others by its own work."


def page() -> None:
    run = choose_run("Stages", WHAT)
    if run is not None:
        # Statistics over many steps change slowly: a calmer page than the timeline.
        st.fragment(_live, run_every=2 * refresh_every(run))(run)


def _live(run: WatchedRun) -> None:
    if not refresh(run):
        return
    report = run.report()
    if not report.stages:
        say_waiting(run, "There are no complete steps to take statistics from yet.")
        _missing(report)
        return
    _verdict(report)
    _missing(report)
    section(
        "Time of a step, rank by rank",
        "All parts of a bar together are the whole step. Blue is useful work; whatever waits is waiting for a slower stage or a link.",
    )
    parts = {account.rank: account.states for account in report.accounting}
    split = split_rows(parts, rank_labels(report))
    show_chart(split_chart(split), key="split")
    section("Stages")
    st.dataframe(stage_rows(report), key="stage-table", hide_index=True, column_config=_columns(), alt="One row per stage")
    section(
        "Compute by stage and micro-batch",
        "Forward and backward together, mean over the usable steps. A dark row is a heavy stage, a dark column a heavy micro-batch.",
    )
    events = run.steady_events()
    heat = heat_rows(events)
    show_chart(heat_chart(heat), key="heat")
    section("Spread over the steps", "Half of the steps lie in the box, nearly all on the line; points are single steps beyond it.")
    spread = spread_rows(events)
    show_chart(spread_chart(spread), key="spread")
    layers = _layers(run, report)
    offer_tables(run.name, {"time by rank": split, "compute by micro-batch": heat, "compute by step": spread, **layers})


def _layers(run: WatchedRun, report: Report) -> dict[str, pd.DataFrame]:
    """Show what the layers within each stage cost; return the table for saving."""
    costs = run.layer_costs()
    if costs is None or not costs.layers:
        return {}
    section("Layers within a stage", "Median of one micro-batch, from the sampled ones: which layer makes its stage heavy.")
    stages = [range(*row.layers) for row in report.stages]
    chosen = st.pills(
        "Stages",
        range(len(stages)),
        format_func=lambda s: f"stage {s}",
        key=f"layers-of-{run.name}",
        selection_mode="multi",
        label_visibility="collapsed",
    )
    rows = layer_rows(costs, stages)
    shown = rows[rows["stage"].isin(chosen)] if chosen else rows
    columns = zip(shown["name"], shown["stage"], shown["forward"], shown["backward"], strict=True)
    bars = {f"{name} · stage {stage}": {"forward": forward, "backward": backward} for name, stage, forward, backward in columns}
    if len(bars) > MOST_LAYERS:
        heaviest = sorted(bars, key=lambda name: -sum(bars[name].values()))[:MOST_LAYERS]
        bars = {name: parts for name, parts in bars.items() if name in heaviest}
        st.caption(f"The {MOST_LAYERS} heaviest of {len(shown)} layers.")
    colors = {"forward": OP_STYLES[Op.FORWARD].color, "backward": OP_STYLES[Op.BACKWARD].color}
    show_chart(stacked_chart(stacked_rows(bars), colors, title="ms per micro-batch", row_height=26), key="layers")
    return {"layers": rows}


def layer_rows(costs: LayerCosts, stages: list[range]) -> pd.DataFrame:
    """Return one row per layer: its stage, times in ms and sizes in bytes."""
    owner = {layer: stage for stage, layers in enumerate(stages) for layer in layers}
    return pd.DataFrame(
        [
            {
                "layer": one.layer,
                "name": one.name,
                "stage": owner.get(one.layer, -1),
                "forward": one.forward.median * 1e3,
                "backward": one.backward.median * 1e3,
                "parameter_bytes": one.parameter_bytes,
                "activation_bytes": one.activation_bytes,
            }
            for one in costs.layers
        ]
    )


def rank_labels(report: Report) -> dict[int, str]:
    """Return what the rows are called: the rank with the stages it owns, the bottleneck marked."""
    pipeline = report.ranks // max(report.replicas, 1)
    stages: dict[int, list[int]] = {}
    for row in report.stages:
        stages.setdefault(row.rank, []).append(row.stage)
    pace = report.verdict.rank if report.verdict else None
    labels = {}
    for rank in range(report.ranks):
        own = ", ".join(str(stage) for stage in stages.get(rank % pipeline, []))
        labels[rank] = f"rank {rank} · stage {own or '–'}{' · bottleneck' if rank % pipeline == pace else ''}"
    return labels


def stage_rows(report: Report) -> pd.DataFrame:
    """Return the stage table as it is shown."""
    pace = report.verdict.stage if report.verdict else None
    return pd.DataFrame([_stage_row(row, row.stage == pace) for row in report.stages])


def _stage_row(row: StageRow, sets_the_pace: bool) -> dict[str, object]:
    return {
        "stage": row.stage,
        "verdict": "bottleneck" if sets_the_pace else "",
        "rank": row.rank,
        "layers": f"{row.layer_names[0]} … {row.layer_names[-1]} ({len(row.layer_names)})"
        if len(row.layer_names) > 1
        else ", ".join(row.layer_names),
        "forward": row.forward.median * 1e3 if row.forward else None,
        "backward": row.backward.median * 1e3 if row.backward else None,
        "compute": row.compute_s.median * 1e3,
        "busy": 100 * row.share,
        "recv_wait": row.recv_wait_s * 1e3,
        "send_wait": row.send_wait_s * 1e3,
        "in_flight": row.in_flight or None,
        "memory": size(row.memory_bytes) if row.memory_bytes else "not measured",
    }


def _columns() -> dict[str, Any]:
    column = st.column_config
    ms = "%.2f ms"
    return {
        "stage": column.NumberColumn("stage", width="small"),
        "verdict": column.TextColumn("", width="small"),
        "rank": column.NumberColumn("rank", width="small"),
        "layers": column.TextColumn("layers", width="medium"),
        "forward": column.NumberColumn("forward", format=ms, help="Median of one micro-batch"),
        "backward": column.NumberColumn("backward", format=ms, help="Median of one micro-batch"),
        "compute": column.NumberColumn("compute per step", format="%.1f ms"),
        "busy": column.ProgressColumn(
            "busy", format="%.0f %%", min_value=0, max_value=100, help="Share of the step in which the stage computes"
        ),
        "recv_wait": column.NumberColumn("waits to receive", format="%.1f ms", help="Mean per step"),
        "send_wait": column.NumberColumn("waits to send", format="%.1f ms", help="Mean per step"),
        "in_flight": column.NumberColumn("in flight", help="Micro-batches whose activations it holds at its peak"),
        "memory": column.TextColumn("memory peak", width="small"),
    }


def _verdict(report: Report) -> None:
    verdict = report.verdict
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if verdict is not None and verdict.stage is not None:
            st.badge(f"stage {verdict.stage} sets the pace", icon=":material/hourglass_top:", color="orange")
            st.markdown(f":gray[it works longest in] **{percent(verdict.confidence)}** :gray[of the steps]", width="content")
        else:
            st.badge("no stage stands out", icon=":material/check:", color="green")
        if report.step_time:
            st.markdown(f":gray[step time] **{duration(report.step_time.median)}**", width="content")
        if report.bubble:
            own = (
                f" :gray[the schedule's own] **{percent(report.bubble.schedule_ratio)}**"
                if report.bubble.schedule_ratio is not None
                else ""
            )
            st.markdown(f":gray[bubble] **{percent(report.bubble.ratio.median)}**{own}", width="content")
        st.markdown(f":gray[from] **{report.usable_steps}** :gray[steps]", width="content")
    if verdict is not None:
        st.text(_sentence(verdict.evidence))


def _missing(report: Report) -> None:
    if report.missing:
        say(":material/info:", "What is not known:", "\n".join(_sentence(text) for text in report.missing))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
