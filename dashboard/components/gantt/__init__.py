"""The live Gantt: a canvas drawn by our own JavaScript, fed with one binary message per refresh.

The script files stand apart by what they do and share one scope, as the parts of one module would:
decode (message to arrays), format (words), paint, paint_frame and paint_levels (drawing), view (zoom and pan), listen (mouse and
keys), main.
"""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import streamlit as st

from dashboard.view_state import ViewState

_SCRIPTS = ("decode.js", "format.js", "paint.js", "paint_frame.js", "paint_levels.js", "view.js", "listen.js", "main.js")


@cache
def source() -> tuple[str, str, str]:
    """Return HTML, CSS and JavaScript of the component."""
    folder = files(__package__)
    script = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in _SCRIPTS)
    return folder.joinpath("gantt.html").read_text(encoding="utf-8"), folder.joinpath("gantt.css").read_text(encoding="utf-8"), script


def last_view(key: str) -> ViewState | None:
    """Return the view that the component with ``key`` last reported in this session."""
    state: Any = st.session_state.get(key)
    return ViewState.read(state.get("view")) if isinstance(state, Mapping) else None


def gantt(message: bytes, *, key: str) -> None:
    """Mount the Gantt, or bring new columns to the one that is there.

    Args:
        message: :func:`dashboard.wire.encode`; its header's ``jump`` is a token: when it changes, the canvas adopts the header's
            ``view`` and ``follow``, otherwise the person's own view stays.
        key: Stable over refreshes; one canvas per key.
    """
    html, css, script = source()
    component = st.components.v2.component("pptoolkit_gantt", html=html, css=css, js=script)
    component(key=key, data=message, on_view_change=lambda: None)
