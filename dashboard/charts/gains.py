"""What each run gained over its parent, beside what was promised."""

import altair as alt
import pandas as pd

from dashboard.charts.palette import RUN_COLORS

LOSS_COLOR = "#b2182b"
PROMISED = "promised"


def gain_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Return the runs of the run list whose gain over their parent is known: run, parent, gain and promised in percent."""
    known = table[table["gain"].notna()]
    frame: pd.DataFrame = known[["run", "parent", "gain"]].assign(promised=known["predicted"]).reset_index(drop=True)
    return frame


def gain_chart(rows: pd.DataFrame) -> alt.LayerChart:
    """Draw one bar a run from no gain to its gain, with a tick at the promise."""
    data = rows.assign(
        label=[f"{run}  vs  {parent}" for run, parent in zip(rows["run"], rows["parent"], strict=True)],
        text=[f"{gain:+.1f} %" for gain in rows["gain"]],
        kind=["less time per step" if gain >= 0 else "more time per step" for gain in rows["gain"]],
        mark=PROMISED,
    )
    promised = data[data["promised"].notna()]
    kinds = [kind for kind in ("less time per step", "more time per step") if (data["kind"] == kind).any()]
    colors = {"less time per step": RUN_COLORS[2], "more time per step": LOSS_COLOR, PROMISED: "#8f8f99"}
    domain = [*kinds, *([PROMISED] if len(promised) else [])]
    # Room for the numbers behind the bars.
    reach = 1.15 * max(float(data["gain"].max()), float(promised["promised"].max()) if len(promised) else 0.0)
    scale = alt.Scale(domain=domain, range=[colors[name] for name in domain])
    legend = alt.Legend(title=None, orient="top", symbolType="square")
    axis = alt.Axis(ticks=False, domain=False, labelLimit=420, labelPadding=8, labelOverlap=False)
    tooltip = [
        alt.Tooltip("run:N"),
        alt.Tooltip("parent:N"),
        alt.Tooltip("gain:Q", title="gain, %", format="+.1f"),
        alt.Tooltip("promised:Q", title="promised, %", format="+.1f"),
    ]
    y = alt.Y("label:N", sort=list(data["label"]), title=None, axis=axis)
    x = alt.X("gain:Q", title="time per step saved, %", scale=alt.Scale(zero=True, domainMax=max(reach, 1.0)), axis=alt.Axis(tickCount=8))
    color = alt.Color("kind:N", scale=scale, legend=legend)
    bars = alt.Chart(data).mark_bar(height={"band": 0.6}).encode(y=y, x=x, color=color, tooltip=tooltip)
    text = alt.Chart(data).mark_text(align="left", dx=10, fontWeight=600).encode(y=y, x="gain:Q", text="text:N", color=color)
    layers = [bars, text]
    if len(promised):
        tick = alt.Chart(promised).mark_tick(thickness=4, size=26)
        layers.append(tick.encode(y=y, x=alt.X("promised:Q"), color=alt.Color("mark:N", scale=scale), tooltip=tooltip))
    return alt.LayerChart(layer=layers).properties(height=34 * len(data) + 74)
