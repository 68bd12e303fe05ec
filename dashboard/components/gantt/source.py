"""The Gantt's HTML, CSS and JavaScript, for whoever shows it: the app, or a file that stands for itself. Imports no Streamlit."""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

_DRAWING = ("paint.js", "paint_narrow.js", "paint_frame.js", "paint_levels.js", "paint_cuts.js")
_SCRIPTS = ("decode.js", "format.js", *_DRAWING, "view.js", "listen.js", "main.js")


class Source(NamedTuple):
    """The parts of the component."""

    html: str
    css: str
    script: str


@cache
def source() -> Source:
    """Return the parts; the script files share one scope, as the parts of one module would."""
    folder = files("dashboard.components.gantt")

    def read(name: str) -> str:
        return folder.joinpath(name).read_text(encoding="utf-8")

    return Source(read("gantt.html"), read("gantt.css"), "\n".join(map(read, _SCRIPTS)))
