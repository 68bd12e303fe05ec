"""The layer strip: each layer as wide as its cost, coloured by the stage that owns it; one row a plan."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import altair as alt
import pandas as pd

from dashboard.charts.numbers import three_digits
from dashboard.charts.palette import INK, ink_on, stage_color

ROW_HEIGHT = 92
_TITLE, _HEAD, _RULE, _BOX, _FOOT = 8, 32, (40, 43), (45, 80), 88  # vertical places within a row
_CHARACTERS = 170  # of a small font across the whole strip


def strip_rows(names: Sequence[str], cost_s: Sequence[float], plans: Mapping[str, Sequence[int]]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the layers and the stages of each plan, placed along the model by cost.

    Args:
        names: Layer names.
        cost_s: Forward plus backward of each layer, per micro-batch.
        plans: Cuts by the name that the row shows.

    Returns:
        Layers: plan, row, layer, name, stage, begin, end, ms. Stages: plan, row, stage, number, begin, end, ms, slowest.
    """
    edges = [0.0]
    for seconds in cost_s:
        edges.append(edges[-1] + seconds * 1e3)
    layers, stages = [], []
    for row, (plan, cuts) in enumerate(plans.items()):
        bounds = [0, *cuts, len(names)]
        sums = [edges[b] - edges[a] for a, b in pairwise(bounds)]
        for number, (a, b) in enumerate(pairwise(bounds)):
            place = {"plan": plan, "row": row, "stage": f"stage {number}"}
            stages.append(
                {**place, "number": number, "begin": edges[a], "end": edges[b], "ms": sums[number], "slowest": sums[number] == max(sums)}
            )
            layers += [
                {**place, "layer": i, "name": names[i], "begin": edges[i], "end": edges[i + 1], "ms": edges[i + 1] - edges[i]}
                for i in range(a, b)
            ]
    return (
        pd.DataFrame(layers, columns=["plan", "row", "layer", "name", "stage", "begin", "end", "ms"]),
        pd.DataFrame(stages, columns=["plan", "row", "stage", "number", "begin", "end", "ms", "slowest"]),
    )


def strip_chart(layers: pd.DataFrame, stages: pd.DataFrame, *, ink: str = INK["light"]) -> alt.LayerChart:
    """Draw :func:`strip_rows`: per plan a row of layers, and above it each stage with its total; the slowest stage is marked.

    Args:
        layers: First part of :func:`strip_rows`.
        stages: Second part.
        ink: Colour of text beside the boxes.
    """
    total = float(stages["end"].max()) if len(stages) else 1.0
    boxes, heads = layers.copy(), stages.copy()
    boxes["label"] = [_fitting(name, ms / total) for name, ms in zip(boxes["name"], boxes["ms"], strict=True)]
    heads["label"] = [
        _stage_label(s, ms, slow, ms / total) for s, ms, slow in zip(heads["number"], heads["ms"], heads["slowest"], strict=True)
    ]
    boxes["ink"] = [ink_on(stage_color(int(stage.removeprefix("stage ")))) for stage in boxes["stage"]]
    heads["weight"] = heads["slowest"].map({True: 1.0, False: 0.7})
    titles = stages.drop_duplicates("row")[["plan", "row"]].assign(begin=0.0)
    for frame in (boxes, heads):
        frame["middle"] = (frame["begin"] + frame["end"]) / 2
    rows = int(stages["row"].max()) + 1 if len(stages) else 1
    numbers = sorted(set(stages["number"]))
    color = alt.Color(
        "stage:N", scale=alt.Scale(domain=[f"stage {s}" for s in numbers], range=[stage_color(s) for s in numbers]), legend=None
    )
    x_scale = alt.Scale(domain=[0, total], nice=False)
    y_scale = alt.Scale(domain=[rows * ROW_HEIGHT, 0], nice=False)

    def placed(frame: pd.DataFrame, top: float, bottom: float | None = None) -> alt.Chart:
        data = frame.assign(top=frame["row"] * ROW_HEIGHT + top, bottom=frame["row"] * ROW_HEIGHT + (top if bottom is None else bottom))
        return alt.Chart(data)

    def at(field: str) -> alt.X:
        return alt.X(f"{field}:Q", scale=x_scale, axis=None)

    y = alt.Y("top:Q", scale=y_scale, axis=None)
    tooltip = [
        alt.Tooltip("name:N", title="layer"),
        alt.Tooltip("stage:N", title="stage"),
        alt.Tooltip("ms:Q", title="ms per micro-batch", format=".3f"),
    ]
    box = placed(boxes, *_BOX).mark_rect(stroke="white", strokeWidth=1.5, cornerRadius=2)
    rule, head = placed(heads, *_RULE).mark_rect(), placed(heads, _HEAD).mark_text(fontSize=12, color=ink)
    return alt.LayerChart(
        layer=[
            box.encode(x=at("begin"), x2="end:Q", y=y, y2="bottom:Q", color=color, tooltip=tooltip),
            placed(boxes, sum(_BOX) / 2)
            .mark_text(fontSize=11, fontWeight=600)
            .encode(x=at("middle"), y=y, text="label:N", color=alt.Color("ink:N", scale=None)),
            rule.encode(x=at("begin"), x2="end:Q", y=y, y2="bottom:Q", color=color),
            head.encode(x=at("middle"), y=y, text="label:N", opacity=alt.Opacity("weight:Q", scale=None, legend=None)),
            placed(titles, _TITLE)
            .mark_text(fontSize=12, fontWeight=600, align="left", color=ink)
            .encode(x=at("begin"), y=y, text="plan:N"),
        ]
    ).properties(height=rows * ROW_HEIGHT)


def _fitting(name: str, share: float) -> str:
    """Return as much of a layer's name as its box holds."""
    room = int(share * _CHARACTERS) - 1
    return name if len(name) <= room else f"{name[: room - 1]}…" if room >= 3 else ""


def _stage_label(stage: int, ms: float, slowest: bool, share: float) -> str:
    text = f"stage {stage}: {three_digits(ms)} ms" if share > 0.09 else f"{three_digits(ms)} ms" if share > 0.045 else ""
    return f"{text} ◂ slowest" if slowest and share > 0.15 else text
