"""The dashboards, one module each. `python -m grafana` writes them as JSON; a test fails when that was forgotten."""

from typing import Any

from grafana.boards import fleet, links_memory, overview, stages

BOARDS: dict[str, dict[str, Any]] = {
    "overview.json": overview.BOARD,
    "stages.json": stages.BOARD,
    "links-memory.json": links_memory.BOARD,
    "fleet.json": fleet.BOARD,
}
