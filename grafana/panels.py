"""Building blocks of a dashboard: queries and panels, each a plain dictionary in Grafana's own JSON model (schema version 39)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Panel = dict[str, Any]

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
OK, WARN, BAD, CALM = "green", "orange", "red", "blue"


@dataclass(frozen=True, slots=True)
class Query:
    """One PromQL expression.

    Args:
        expr: The expression; it may use the board's variables and ``$__rate_interval``.
        legend: Name of its series, e.g. ``"rank {{rank}}"``.
        table: Ask for the latest values as rows instead of series over time.
        heatmap: The series are buckets of a histogram.
    """

    expr: str
    legend: str = ""
    table: bool = False
    heatmap: bool = False

    def target(self, letter: str) -> dict[str, Any]:
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": "table" if self.table else "heatmap" if self.heatmap else "time_series",
            "instant": self.table,
            "range": not self.table,
            "legendFormat": self.legend or "__auto",
            "refId": letter,
        }


def steps(*levels: tuple[float, str], base: str = OK) -> dict[str, Any]:
    """Return thresholds: ``base`` below the first level, then the colour of the highest level reached."""
    return {"mode": "absolute", "steps": [{"color": base, "value": None}, *({"color": c, "value": v} for v, c in levels)]}


def graph(
    title: str,
    *queries: Query,
    unit: str,
    about: str,
    stacked: bool = False,
    least: float | None = 0,
    most: float | None = None,
    thresholds: Mapping[str, Any] | None = None,
    log: bool = False,
) -> Panel:
    """A panel of lines over time; ``stacked`` fills the areas and puts them on each other."""
    custom = {
        "drawStyle": "line",
        "lineInterpolation": "linear",
        "lineWidth": 1,
        "fillOpacity": 60 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"group": "A", "mode": "normal" if stacked else "none"},
        "scaleDistribution": {"type": "log", "log": 10} if log else {"type": "linear"},
        "thresholdsStyle": {"mode": "dashed" if thresholds else "off"},
    }
    defaults = {"unit": unit, "custom": custom, "color": {"mode": "palette-classic"}, "thresholds": thresholds or steps()}
    options = {
        "legend": {"displayMode": "table", "placement": "right", "showLegend": True, "calcs": ["mean", "lastNotNull"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return _panel("timeseries", title, queries, about, {**defaults, **_range(least, most)}, options)


def number(
    title: str,
    query: Query,
    *,
    unit: str,
    about: str,
    thresholds: Mapping[str, Any] | None = None,
    decimals: int | None = None,
    trend: bool = True,
) -> Panel:
    """A panel of one large number, coloured by its thresholds."""
    defaults: dict[str, Any] = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": thresholds or steps(base=CALM)}
    if decimals is not None:
        defaults["decimals"] = decimals
    options = {
        "colorMode": "value",
        "graphMode": "area" if trend else "none",
        "justifyMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "textMode": "auto",
    }
    return _panel("stat", title, (query,), about, defaults, options)


def bars(
    title: str, query: Query, *, unit: str, about: str, most: float | None = None, thresholds: Mapping[str, Any] | None = None
) -> Panel:
    """A panel of horizontal bars, one per series, of the latest values."""
    defaults = {"unit": unit, "color": {"mode": "thresholds"}, "thresholds": thresholds or steps(base=CALM), **_range(0, most)}
    options = {
        "displayMode": "basic",
        "orientation": "horizontal",
        "showUnfilled": True,
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    return _panel("bargauge", title, (query,), about, defaults, options)


def heatmap(title: str, query: Query, *, unit: str, about: str) -> Panel:
    """A panel that draws a histogram over time."""
    options = {
        "calculate": False,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64},
        "yAxis": {"unit": unit, "axisPlacement": "left"},
        "cellGap": 1,
        "tooltip": {"mode": "single", "yHistogram": True},
        "legend": {"show": True},
    }
    return _panel("heatmap", title, (query,), about, {"custom": {"scaleDistribution": {"type": "linear"}}}, options)


def matrix(title: str, query: Query, *, row: str, column: str, unit: str, about: str) -> Panel:
    """A table of cells coloured by value: one label down, another across."""
    defaults = {
        "unit": unit,
        "color": {"mode": "continuous-GrYlRd"},
        "custom": {"cellOptions": {"type": "color-background", "mode": "gradient"}, "align": "center", "width": 84},
    }
    panel = _panel("table", title, (query,), about, defaults, {"showHeader": True, "cellHeight": "sm"})
    # As numbers and sorted: as text, micro-batch 10 stands before 2.
    numbers = [{"targetField": name, "destinationType": "number"} for name in (row, column)]
    panel["transformations"] = [
        {"id": "convertFieldType", "options": {"conversions": numbers, "fields": {}}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": column}]}},
        {"id": "groupingToMatrix", "options": {"columnField": column, "rowField": row, "valueField": "Value", "emptyValue": "empty"}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": f"{row}\\{column}"}]}},
    ]
    corner = {
        "matcher": {"id": "byName", "options": f"{row}\\{column}"},
        "properties": [_cell("auto"), {"id": "unit", "value": "none"}, {"id": "decimals", "value": 0}],
    }
    panel["fieldConfig"]["overrides"] = [corner]
    return panel


def table(title: str, columns: Sequence[tuple[str, str, Query]], *, key: str, key_title: str, about: str, link: str = "") -> Panel:
    """A table with a row per value of the label ``key``: each column is a query that yields one value for each.

    Args:
        title: Of the panel.
        columns: Title, unit and query of each column.
        key: The label.
        key_title: Title of its column.
        about: What the panel says.
        link: Where a click on the key leads.
    """
    queries = [query for _, _, query in columns]
    letters = _letters(len(columns))
    panel = _panel(
        "table", title, queries, about, {"custom": {"align": "auto", "filterable": True}}, {"showHeader": True, "cellHeight": "sm"}
    )
    names = {key: key_title} | {f"Value #{letter}": name for letter, (name, *_) in zip(letters, columns, strict=True)}
    if len(columns) == 1:
        names["Value"] = columns[0][0]
    panel["transformations"] = [
        {"id": "merge", "options": {}},
        {"id": "filterFieldsByName", "options": {"include": {"names": list(names)}}},
        {"id": "organize", "options": {"indexByName": {name: i for i, name in enumerate(names)}, "renameByName": names}},
    ]
    panel["fieldConfig"]["overrides"] = [
        {"matcher": {"id": "byName", "options": name}, "properties": [{"id": "unit", "value": unit}]} for name, unit, _ in columns
    ]
    if link:
        target = [{"title": "Open", "url": link, "targetBlank": False}]
        panel["fieldConfig"]["overrides"].append(
            {"matcher": {"id": "byName", "options": key_title}, "properties": [{"id": "links", "value": target}]}
        )
    return panel


def _panel(kind: str, title: str, queries: Sequence[Query], about: str, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Panel:
    targets = [query.target(letter) for query, letter in zip(queries, _letters(len(queries)), strict=True)]
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": DATASOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {"mappings": [], **defaults}, "overrides": []},
        "options": dict(options),
    }


def _range(least: float | None, most: float | None) -> dict[str, float]:
    return {name: value for name, value in (("min", least), ("max", most)) if value is not None}


def _cell(kind: str) -> dict[str, Any]:
    return {"id": "custom.cellOptions", "value": {"type": kind}}


def _letters(count: int) -> list[str]:
    return [chr(ord("A") + number) for number in range(count)]
