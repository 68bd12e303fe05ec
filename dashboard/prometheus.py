"""What a running Prometheus knows of the runs it scrapes, as tables. Imports no Streamlit.

Prometheus keeps numbers and no events: there is no Gantt to be had from it, but every run of every host it watches, live and past.
"""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

import pandas as pd

from pptoolkit.errors import MonitoringError
from pptoolkit.telemetry.settings import is_http_url

DEFAULT_ADDRESS = "http://127.0.0.1:9090"
TIMEOUT_S = 3.0
MOST_BYTES = 16 << 20
WINDOW = "2m"  # over which rates are taken: some scrapes, whatever their interval
_POINTS = 240
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
# Column of the list of runs: the expression whose value by run_id it shows.
_RUNS = {
    "ranks": "count by (run_id) (pptoolkit_run_info)",
    "steps": "max by (run_id) (pptoolkit_steps_total)",
    "loss": "max by (run_id) (pptoolkit_loss)",
    "step_ms": "1e3 * max by (run_id) (rate(pptoolkit_step_duration_seconds_sum[{w}]) / rate(pptoolkit_step_duration_seconds_count[{w}]))",
    "bubble": "100 * avg by (run_id) (pptoolkit_bubble_ratio)",
    "samples_per_s": "sum by (run_id) (rate(pptoolkit_samples_total[{w}]))",
    "last_step": "time() - max by (run_id) (pptoolkit_last_step_timestamp_seconds)",
    "last_sign": "time() - min by (run_id) (pptoolkit_heartbeat_timestamp_seconds)",
    "dropped": "sum by (run_id) (pptoolkit_events_dropped_total)",
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """One server; every call asks it anew and takes at most :data:`TIMEOUT_S` seconds.

    Args:
        address: ``http://host:port``, with the path that it is served under.

    Raises:
        MonitoringError: If ``address`` is none.
    """

    address: str

    def __post_init__(self) -> None:
        if not is_http_url(self.address):
            raise MonitoringError(f"{self.address!r} is no address of a Prometheus; write it as {DEFAULT_ADDRESS}")

    @property
    def on_loopback(self) -> bool:
        return urllib.parse.urlsplit(self.address).hostname in _LOOPBACK

    def query(self, expression: str) -> pd.DataFrame:
        """Return one row a series: its labels and ``value``.

        Raises:
            MonitoringError: If Prometheus does not answer, or refuses.
        """
        found = self._get("query", query=expression)
        return pd.DataFrame([{**series["metric"], "value": float(series["value"][1])} for series in found])

    def history(self, expression: str, *, minutes: float, now_s: float | None = None) -> pd.DataFrame:
        """Return one row a series and moment of the last ``minutes``: its labels, ``unix_s`` and ``value``.

        Raises:
            MonitoringError: As for :meth:`query`.
        """
        end = time.time() if now_s is None else now_s
        span = 60 * minutes
        times = {"start": f"{end - span:.3f}", "end": f"{end:.3f}", "step": f"{max(span / _POINTS, 1):.3f}"}
        found = self._get("query_range", query=expression, **times)
        rows = [{**series["metric"], "unix_s": float(at), "value": float(value)} for series in found for at, value in series["values"]]
        return pd.DataFrame(rows)

    def _get(self, kind: str, **parameters: str) -> list[dict[str, Any]]:
        address = f"{self.address.rstrip('/')}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:
                body = json.loads(answer.read(MOST_BYTES))
            result: list[dict[str, Any]] = body["data"]["result"]
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(300).decode(errors="replace")
            raise MonitoringError(f"{self.address} refused with status {error.code}: {said}; is this a Prometheus?") from error
        except (OSError, HTTPException) as error:
            raise MonitoringError(
                f"{self.address} does not answer: {error}; start Prometheus, or write where it listens, as {DEFAULT_ADDRESS}"
            ) from error
        except (ValueError, KeyError, TypeError) as error:
            raise MonitoringError(f"{self.address} did not answer as a Prometheus does; is another program listening there?") from error
        return result


def run_table(server: Prometheus) -> pd.DataFrame:
    """Return one row a run that is being scraped, with the columns of :data:`_RUNS`; what is not known is NaN.

    Raises:
        MonitoringError: If Prometheus does not answer.
    """
    columns = {}
    for name, expression in _RUNS.items():
        found = server.query(expression.replace("{w}", WINDOW))
        columns[name] = found.set_index("run_id")["value"] if {"run_id", "value"} <= set(found.columns) else pd.Series(dtype=float)
    table = pd.DataFrame(columns).rename_axis("run").reset_index()
    return table[table["ranks"].notna()].sort_values("run", ignore_index=True)


def split_of(server: Prometheus, run_id: str) -> dict[int, dict[str, float]]:
    """Return the seconds a step that each rank of a run spends in each state, over the last :data:`WINDOW`."""
    run = f"run_id={json.dumps(run_id)}"
    steps = f"on (rank) group_left () sum by (rank) (rate(pptoolkit_steps_total{{{run}}}[{WINDOW}]))"
    found = server.query(f"sum by (rank, state) (rate(pptoolkit_rank_time_seconds_total{{{run}}}[{WINDOW}])) / {steps}")
    parts: dict[int, dict[str, float]] = {}
    for row in found.to_dict("records"):
        if row["value"] > 0:  # also False for NaN: a rank that did no step lately
            parts.setdefault(int(row["rank"]), {})[str(row["state"])] = float(row["value"])
    return parts


def curve_of(server: Prometheus, run_id: str, *, minutes: float) -> pd.DataFrame:
    """Return unix_s and step_time_s over the last ``minutes``: the slowest rank's mean step time."""
    run = f"run_id={json.dumps(run_id)}"
    duration = "rate(pptoolkit_step_duration_seconds_{part}{{{run}}}[{w}])"
    total, count = (duration.format(part=part, run=run, w=WINDOW) for part in ("sum", "count"))
    found = server.history(f"max({total} / {count})", minutes=minutes)
    if found.empty:
        return pd.DataFrame(columns=["unix_s", "step_time_s"])
    return found[["unix_s", "value"]].rename(columns={"value": "step_time_s"}).dropna()
