"""The live Gantt: a canvas drawn by our own JavaScript, fed with one binary message per refresh.

The script files stand apart by what they do and share one scope, as the parts of one module would:
decode (message to arrays), format (words), paint, paint_narrow, paint_frame, paint_levels and paint_cuts (drawing), view (zoom and
pan), listen (mouse and keys), main. Streamlit is imported where it is used: a run is also written to a file where it is not installed.
"""

from collections.abc import Mapping
from typing import Any

from dashboard.components.gantt.source import source
from dashboard.view_state import ViewState


def last_view(key: str) -> ViewState | None:
    """Return the view that the component with ``key`` last reported in this session."""
    import streamlit as st

    state: Any = st.session_state.get(key)
    return ViewState.read(state.get("view")) if isinstance(state, Mapping) else None


def gantt(message: bytes, *, key: str) -> None:
    """Mount the Gantt, or bring new columns to the one that is there.

    Args:
        message: :func:`dashboard.wire.encode`; its header's ``jump`` is a token: when it changes, the canvas adopts the header's
            ``view`` and ``follow``, otherwise the person's own view stays.
        key: Stable over refreshes; one canvas per key.
    """
    import streamlit as st

    html, css, script = source()
    component = st.components.v2.component("pptoolkit_gantt", html=html, css=css, js=script)
    component(key=key, data=message, on_view_change=lambda: None)
