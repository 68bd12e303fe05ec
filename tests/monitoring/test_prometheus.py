"""A real Prometheus server, started with the configuration that we print, scrapes a real run."""

import concurrent.futures
import socket
import urllib.request
from pathlib import Path

import pytest

from grafana import RULES
from pptoolkit.monitoring.scrape_config import ScrapeConfig
from tests.monitoring.conftest import PORT, Watched, train, write_wide_job
from tests.support.jobs import started
from tests.support.prometheus import prometheus_server
from tests.support.stand_in import wait_until
from tests.telemetry.test_metrics import DESIGNED

pytestmark = pytest.mark.timeout(400)  # the first test waits for the run to start
# What a run on CPUs, without checkpoints and asynchronous updates, has no value for.
ABSENT = {"device_utilization_ratio", "device_power_watts", "device_temperature_celsius", "checkpoint_age_seconds"}
HISTOGRAMS = {name for name, (kind, _) in DESIGNED.items() if kind == "histogram"}


def test_every_rank_is_a_target_with_run_rank_replica_and_host(watched: Watched) -> None:
    targets = [t for t in watched.prometheus.targets() if t["labels"].get("run_id") == "live"]
    labels = sorted((t["labels"] for t in targets), key=lambda found: found["rank"])
    common = {"job": "pptoolkit", "run_id": "live", "replica": "0", "host": socket.gethostname()}
    assert labels == [{**common, "rank": str(rank), "instance": f"127.0.0.1:{PORT + rank}"} for rank in (0, 1)]
    assert [(t["health"], t["lastError"]) for t in targets] == [("up", "")] * 2


def test_every_designed_metric_that_such_a_run_has_is_there_for_both_ranks_with_its_labels(watched: Watched) -> None:
    common = {"__name__", "job", "instance", "run_id", "rank", "replica", "host"}
    for name, (_, labels) in DESIGNED.items():
        if name in ABSENT:
            continue
        found = watched.prometheus.query(f'pptoolkit_{name}{"_count" if name in HISTOGRAMS else ""}{{run_id="live"}}')
        assert {series["metric"]["rank"] for series in found} == {"0", "1"}, name
        for series in found:
            # Prometheus takes a label without a value for none: ops of the whole rank have no stage.
            assert set(series["metric"]) - common <= labels, (name, series)
            assert labels - set(series["metric"]) <= {"stage", "plan"}, (name, series)


def test_the_values_are_those_of_the_run(watched: Watched) -> None:
    value = watched.prometheus.value
    parts, wall = (
        value(f'sum(pptoolkit_{name}{{run_id="live"}})') or 0 for name in ("rank_time_seconds_total", "step_duration_seconds_sum")
    )
    longest = value('max(pptoolkit_step_duration_seconds_sum{run_id="live"} / pptoolkit_step_duration_seconds_count{run_id="live"})') or 0
    assert abs(parts - wall) < 8 * longest, "the states sum to the steps' wall time, but for steps between the two questions"
    # Each rank brings its counters up to date at a moment of its own, so the last stage's rank, which counts, is asked for both at once.
    both = 'sum(pptoolkit_samples_total{run_id="live"}) - 16 * sum(pptoolkit_steps_total{run_id="live", rank="1"})'
    uncounted = value(both)
    assert uncounted is not None
    assert abs(uncounted) <= 16, "samples are counted once, not once per rank; of one step the sample may be a moment late"
    assert 0 < (value('pptoolkit:bubble_ratio:rate5m{run_id="live"}') or 0) < 1
    assert value('count(pptoolkit_run_info{run_id="live", schedule="1f1b", stages="2", micro_batches="8", plan="cuts=2"})') == 2
    received = watched.prometheus.query('rate(pptoolkit_link_bytes_total{run_id="live"}[1m]) > 0')
    assert {(s["metric"]["src_stage"], s["metric"]["dst_stage"], s["metric"]["kind"]) for s in received} == {
        ("0", "1", "activation"),
        ("1", "0", "gradient"),
    }


def test_the_number_of_series_stays_the_same_while_the_run_goes_on(watched: Watched) -> None:
    def series() -> float | None:
        return watched.prometheus.value('count({__name__=~"pptoolkit_.+", run_id="live", job="pptoolkit"})')

    def steps() -> float:
        return watched.prometheus.value('max(pptoolkit_steps_total{run_id="live"})') or 0

    before, then = series(), steps()
    wait_until(lambda: steps() > then + 30, what="30 more steps")
    assert series() == before
    names = watched.prometheus.get("label/__name__/values")
    assert not {name for name in names if name.startswith("pptoolkit_") and name.endswith("_created")}
    assert "step" not in watched.prometheus.get("labels", **{"match[]": '{run_id="live"}'})


def test_every_family_that_is_scraped_explains_itself(watched: Watched) -> None:
    metadata = watched.prometheus.get("metadata")
    ours = {name: found for name, found in metadata.items() if name.startswith("pptoolkit_")}
    assert len(ours) >= len(DESIGNED) - len(ABSENT)
    assert [name for name, found in ours.items() if not found[0]["help"].endswith(".") or found[0]["type"] == "unknown"] == []


def test_a_healthy_run_raises_no_critical_alert_and_every_rule_can_be_evaluated(watched: Watched) -> None:
    rules = [rule for group in watched.prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == 20
    assert [(rule["name"], rule.get("lastError")) for rule in rules if rule["health"] != "ok"] == []
    assert watched.prometheus.query('ALERTS{run_id="live", alertstate="firing", severity="critical"}') == []


def test_a_heartbeat_that_stands_still_raises_its_alert_with_a_summary_that_names_the_rank(watched: Watched) -> None:
    def raised() -> list[str]:
        alerts = watched.prometheus.get("alerts")["alerts"]
        return [a["annotations"]["summary"] for a in alerts if a["labels"]["alertname"] == "PPToolkitHeartbeatLost"]

    (summary,) = wait_until(raised, what="the alert of a rank whose heartbeat is from 1970")
    assert summary.startswith("Rank 1 of run filled has given no sign of life for ")


def test_a_run_that_ended_between_two_scrapes_left_its_last_values_in_its_directory_and_on_the_pushgateway(watched: Watched) -> None:
    for rank in (0, 1):
        text = watched.short.metrics_path(rank).read_text()
        assert "pptoolkit_steps_total 3.0\n" in text
    pushed = 'pptoolkit_steps_total{run_id="short", job="pptoolkit-final"}'
    wait_until(lambda: len(watched.prometheus.query(pushed)) == 2, what="both ranks' pushed values")
    for series in watched.prometheus.query(pushed):
        assert (series["value"][1], series["metric"]["host"]) == ("3", socket.gethostname())
    assert not list((watched.runs / "prometheus-sd").glob("short*"))


def test_a_run_with_a_killed_rank_leaves_no_ghosts(watched: Watched) -> None:
    folder = watched.runs.parent / "killed"
    config = write_wide_job(folder, steps=100_000, port=PORT + 20)
    # Beside the runs of the server's folder, so that it finds this one too.
    with started(folder, *train(config, str(watched.runs / "killed"))) as command:
        up = 'up{run_id="killed"} == 1'
        wait_until(lambda: len(watched.prometheus.query(up)) == 2, limit_s=60, what="two ranks up")
        command.rank(1).kill()
        assert command.end().code == 1
    wait_until(lambda: not watched.prometheus.query('{run_id="killed", job="pptoolkit"}'), what="no series of the killed run")
    assert {t["labels"].get("run_id") for t in watched.prometheus.targets()} == {"live", "filled", None}
    assert watched.prometheus.query('ALERTS{run_id="killed"}') == []


def test_rank_0_tells_prometheus_of_all_ranks_over_http(watched: Watched, tmp_path: Path) -> None:
    config = ScrapeConfig(discovery=(f"http://127.0.0.1:{PORT}/sd",), rules=(RULES,), interval_s=1)
    with prometheus_server(tmp_path, config.render()) as other:
        wait_until(lambda: len(other.query('up{run_id="live"} == 1')) == 2, what="two ranks up")


def test_twenty_scrapers_and_some_that_never_read_are_no_matter_to_the_run(watched: Watched) -> None:
    def scrape(_: int) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=30) as answer:
            assert answer.status == 200
            line = next(line for line in answer.read().decode().splitlines() if line.startswith("pptoolkit_steps_total "))
        return float(line.split()[1])

    deaf = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(5)]
    try:
        for connection in deaf:
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            steps = list(pool.map(scrape, range(200)))
        wait_until(lambda: scrape(0) > max(steps), what="another step")
        assert watched.prometheus.value('min(up{run_id="live"})') == 1
        assert watched.prometheus.value('sum(pptoolkit_events_dropped_total{run_id="live"})') == 0
    finally:
        for connection in deaf:
            connection.close()
