"""A dashboard from rows of panels: lays them out on Grafana's grid of 24 columns, and adds variables, links and annotations."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grafana.panels import DATASOURCE, Panel

COLUMNS = 24
TAG = "pptoolkit"
JOB = "pptoolkit"
FINAL_JOB = "pptoolkit-final"


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, and panels that share the width below it equally, ``across`` of them beside each other.

    Args:
        title: Heading.
        panels: From left to right, from top to bottom.
        across: How many stand side by side; divides 24.
        height: Of each panel, in grid units of 30 pixels.
    """

    title: str
    panels: Sequence[Panel]
    across: int = 2
    height: int = 8


@dataclass(frozen=True, slots=True)
class Variable:
    """A choice at the top of the board: the values that ``label`` has in ``metric``."""

    name: str
    title: str
    metric: str
    label: str
    several: bool = False

    def to_dict(self) -> dict[str, Any]:
        query = f"label_values({self.metric}, {self.label})"
        return {
            "type": "query",
            "name": self.name,
            "label": self.title,
            "datasource": DATASOURCE,
            "definition": query,
            "query": {"query": query, "refId": f"{self.name}-values"},
            "refresh": 2,  # when the time range changes: runs come and go
            "sort": 3 if self.several else 2,
            "multi": self.several,
            "includeAll": self.several,
            **(
                {"allValue": ".*", "current": {"selected": True, "text": ["All"], "value": ["$__all"]}} if self.several else {"current": {}}
            ),
            "hide": 0,
            "options": [],
            "regex": "",
        }


RUN = Variable("run", "Run", f'pptoolkit_run_info{{job="{JOB}"}}', "run_id")
RANK = Variable("rank", "Rank", f'pptoolkit_run_info{{job="{JOB}", run_id="$run"}}', "rank", several=True)


def board(uid: str, title: str, about: str, *, variables: Sequence[Variable], rows: Sequence[Row]) -> dict[str, Any]:
    """Return the dashboard as Grafana keeps it. ``uid`` stays the same for ever: links and updates go by it."""
    of_run = any(variable.name == "run" for variable in variables)
    return {
        "id": None,
        "uid": uid,
        "title": title,
        "description": about,
        "tags": [TAG],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,  # one cross-hair over all panels
        "refresh": "10s",
        "schemaVersion": 39,
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "weekStart": "",
        "fiscalYearStartMonth": 0,
        "liveNow": False,
        "annotations": {"list": [_builtin_annotations(), _run_annotations(of_run)]},
        "links": [_links()],
        "templating": {"list": [_datasource_variable(), *(variable.to_dict() for variable in variables)]},
        "panels": _lay_out(rows),
    }


def _lay_out(rows: Sequence[Row]) -> list[Panel]:
    placed: list[Panel] = []
    top = 0
    for row in rows:
        heading = {"type": "row", "title": row.title, "collapsed": False, "panels": []}
        placed.append({"id": len(placed) + 1, **heading, "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top}})
        width = COLUMNS // row.across
        for number, panel in enumerate(row.panels):
            down, right = divmod(number, row.across)
            place = {"h": row.height, "w": width, "x": right * width, "y": top + 1 + down * row.height}
            placed.append({"id": len(placed) + 1, **panel, "gridPos": place})
        top += 1 + -(-len(row.panels) // row.across) * row.height
    return placed


def _datasource_variable() -> dict[str, Any]:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "current": {},
        "hide": 0,
        "includeAll": False,
        "multi": False,
        "options": [],
        "refresh": 1,
        "regex": "",
    }


def _builtin_annotations() -> dict[str, Any]:
    return {
        "builtIn": 1,
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": True,
        "iconColor": "rgba(0, 211, 255, 1)",
        "name": "Annotations & Alerts",
        "type": "dashboard",
    }


def _run_annotations(of_run: bool) -> dict[str, Any]:
    """What `pptoolkit grafana push` left: starts, plans, restarts, checkpoints; on a board of one run only its own."""
    return {
        "datasource": {"type": "grafana", "uid": "-- Grafana --"},
        "enable": True,
        "hide": False,
        "iconColor": "purple",
        "name": "Run events",
        "target": {"type": "tags", "tags": [TAG, *(["run:$run"] if of_run else [])], "matchAny": False, "limit": 200},
    }


def _links() -> dict[str, Any]:
    return {
        "type": "dashboards",
        "title": "pptoolkit",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }
