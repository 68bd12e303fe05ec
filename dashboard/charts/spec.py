"""A chart as Vega-Lite whose words stay the same while its numbers change.

Altair names a data frame by what is in it, so with every new row the whole specification is another one, and the browser throws the
picture away and makes it anew. Under names of our own it only puts the new rows into the picture that is there.
"""

from typing import Any

import altair as alt
import pandas as pd


def spec_of(chart: alt.Chart | alt.LayerChart) -> dict[str, Any]:
    """Return the specification of ``chart``, with its data frames under ``datasets`` by names that depend on their place only."""
    frames: dict[str, pd.DataFrame] = {}
    spec: dict[str, Any] = _named(chart, frames).to_dict(validate=False)
    spec.get("config", {}).pop("view", None)  # a size of Altair's own; the page has another
    return {**spec, "datasets": frames}


def _named(chart: Any, frames: dict[str, pd.DataFrame]) -> Any:
    """Return a copy of ``chart`` that refers to its data by name; the data go to ``frames``."""
    copy = chart.copy(deep=False)
    if isinstance(copy.data, pd.DataFrame):
        known = next((name for name, frame in frames.items() if frame is copy.data), None)
        name = known or f"data-{len(frames)}"
        frames[name] = copy.data
        copy.data = alt.NamedData(name=name)
    if isinstance(copy, alt.LayerChart):
        copy.layer = [_named(part, frames) for part in copy.layer]
    return copy
