"""The layer strip whose cuts can be dragged: each layer as wide as it is costly, with a handle between stages."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st

from dashboard.charts.palette import STAGE_COLORS, ink_on


@cache
def _source() -> tuple[str, str, str]:
    folder = files(__package__)
    html, css, script = (folder.joinpath(f"cuts.{kind}").read_text(encoding="utf-8") for kind in ("html", "css", "js"))
    return html, css, script


def dragged_cuts(key: str, layers: int) -> tuple[int, ...] | None:
    """Return the cuts that the strip with ``key`` last reported in this session; None if it did not, or they make no sense."""
    state: Any = st.session_state.get(key)
    value = state.get("cuts") if isinstance(state, Mapping) else None
    if not isinstance(value, list) or not all(isinstance(cut, int) and not isinstance(cut, bool) for cut in value):
        return None
    cuts = tuple(value)
    return cuts if all(a < b for a, b in zip((0, *cuts), (*cuts, layers), strict=True)) else None


def cut_strip(
    names: Sequence[str], cost_ms: Sequence[float], cuts: Sequence[int], *, token: str, key: str, on_change: Callable[[], None]
) -> None:
    """Mount the strip.

    Args:
        names: Layer names.
        cost_ms: Compute of each layer per micro-batch.
        cuts: Where its handles are; taken over by the strip when ``token`` changes.
        token: Says that the cuts were set from elsewhere.
        key: Stable over refreshes.
        on_change: Called when the person has moved a handle.
    """
    html, css, script = _source()
    data = {
        "names": list(names),
        "costs": list(cost_ms),
        "cuts": list(cuts),
        "token": token,
        "colors": list(STAGE_COLORS),
        "inks": [ink_on(color) for color in STAGE_COLORS],
    }
    st.components.v2.component("pptoolkit_cuts", html=html, css=css, js=script)(key=key, data=data, on_cuts_change=on_change)
