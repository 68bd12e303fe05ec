"""The shipped dashboards: they import as they are, their panels do not overlap, and every query finds data of a real run."""

import itertools
import json
import math
import re
import time
from typing import Any

import pytest
import yaml

from grafana import DASHBOARDS, RULES
from grafana.boards import BOARDS
from tests.monitoring.conftest import Watched
from tests.monitoring.test_prometheus import ABSENT
from tests.telemetry.test_metrics import DESIGNED

Board = dict[str, Any]
FILES = sorted(DASHBOARDS.glob("*.json"))
LOADED: dict[str, Board] = {path.stem: json.loads(path.read_text()) for path in FILES}
EACH = pytest.mark.parametrize("board", LOADED.values(), ids=LOADED.keys())
WORDS = {"s": "second", "percentunit": "percent", "Bps": "bytes per second", "bytes": "bytes"}


def panels(board: Board) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries(board: Board) -> list[tuple[str, str, dict[str, Any]]]:
    return [(board["uid"], panel["title"], target) for panel in panels(board) for target in panel["targets"]]


def test_the_committed_files_are_what_the_boards_say() -> None:
    assert {path.name: json.loads(path.read_text()) for path in FILES} == BOARDS, "run: python -m grafana"


def test_uids_stay_what_links_and_earlier_imports_know() -> None:
    assert {name: board["uid"] for name, board in LOADED.items()} == {
        "fleet": "pptoolkit-fleet",
        "links-memory": "pptoolkit-links-memory",
        "overview": "pptoolkit-run",
        "stages": "pptoolkit-stages",
    }
    assert all(board["id"] is None and len(board["uid"]) <= 40 for board in LOADED.values())


@EACH
def test_a_board_needs_no_data_source_of_a_certain_name(board: Board) -> None:
    assert "__inputs" not in board
    names = [variable["name"] for variable in board["templating"]["list"]]
    assert names[0] == "datasource"
    assert board["templating"]["list"][0]["type"] == "datasource"
    found = [value for value in _values(board, "datasource") if isinstance(value, dict)]
    assert {(value["type"], value["uid"]) for value in found} == {("prometheus", "${datasource}"), ("grafana", "-- Grafana --")}
    assert all(isinstance(value, dict) for value in _values(board, "datasource"))
    used = set(re.findall(r"\$(?:\{)?(\w+)", json.dumps([panel["targets"] for panel in panels(board)])))
    assert used <= {*names, "__rate_interval"}


@EACH
def test_panels_fill_the_grid_without_overlapping(board: Board) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        for cell in itertools.product(range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])):
            assert cell not in taken, f"{panel['title']} lies on {taken[cell]}"
            taken[cell] = panel["title"]
    height = max(y for _, y in taken) + 1
    assert {x for x, y in taken if y == 0} == set(range(24))
    assert {y for _, y in taken} == set(range(height)), "no empty stripes"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))


@EACH
def test_every_panel_has_a_title_an_explanation_and_a_unit(board: Board) -> None:
    titles = [panel["title"] for panel in board["panels"]]
    assert len(titles) == len(set(titles))
    for panel in panels(board):
        assert panel["description"].endswith("."), panel["title"]
        units = set(_values(panel["fieldConfig"], "unit")) | set(_values(panel["options"], "unit"))
        units |= {p["value"] for override in panel["fieldConfig"]["overrides"] for p in override["properties"] if p["id"] == "unit"}
        assert units, panel["title"]
        word = WORDS.get(panel["fieldConfig"]["defaults"].get("unit", ""))
        assert word is None or word in panel["title"], panel["title"]
        if panel["type"] == "timeseries":
            assert all(target["legendFormat"] != "__auto" for target in panel["targets"]), panel["title"]


@EACH
def test_every_metric_that_is_asked_for_exists(board: Board) -> None:
    recorded = {rule["record"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "record" in rule}
    bases = {f"pptoolkit_{name}" for name in (*DESIGNED, "host_network_bytes_total")}
    known = bases | {f"{name}_{part}" for name in bases for part in ("bucket", "sum", "count")} | recorded
    text = " ".join(target["expr"] for _, _, target in queries(board))
    text += " ".join(variable["definition"] for variable in board["templating"]["list"] if variable["type"] == "query")
    assert set(re.findall(r"\bpptoolkit[_:][\w:]+", text)) <= known


@pytest.mark.timeout(400)
@EACH
def test_every_query_of_every_panel_returns_series_of_a_real_run(board: Board, watched: Watched) -> None:
    now = time.time()
    for uid, title, target in queries(board):
        # What a CPU run has not, is asked of a rank that has everything.
        run = "filled" if any(f"pptoolkit_{name}" in target["expr"] for name in ABSENT) else "live"
        expression = target["expr"].replace("$__rate_interval", "20s").replace("$runs", ".*").replace("$run", run).replace("$rank", ".*")
        assert "$" not in expression, (uid, title)
        if target["instant"]:
            values = [series["value"][1] for series in watched.prometheus.query(expression)]
        else:
            answer = watched.prometheus.get("query_range", query=expression, start=str(now - 60), end=str(now), step="1")
            values = [value for series in answer["result"] for _, value in series["values"]]
        assert any(math.isfinite(float(value)) for value in values), (uid, title, expression, values[:5])


@pytest.mark.timeout(400)
@EACH
def test_every_variable_offers_the_run(board: Board, watched: Watched) -> None:
    for variable in board["templating"]["list"][1:]:
        matched = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["definition"])
        assert matched, variable
        selector, label = matched[1].replace("$run", "live"), matched[2]
        values = watched.prometheus.get(f"label/{label}/values", **{"match[]": selector})
        assert ("live" if label == "run_id" else "1") in values


def _values(tree: Any, key: str) -> list[Any]:
    """Return the values under ``key`` anywhere in ``tree``."""
    if isinstance(tree, dict):
        own = [tree[key]] if key in tree else []
        return own + [found for value in tree.values() for found in _values(value, key)]
    if isinstance(tree, list):
        return [found for value in tree for found in _values(value, key)]
    return []
