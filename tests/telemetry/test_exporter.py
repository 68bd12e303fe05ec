import concurrent.futures
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pptoolkit.telemetry import exporter as exporter_module
from pptoolkit.telemetry.exporter import Exporter, Exposition, Request, Response


def get(exporter: Exporter, path: str, *, timeout_s: float = 20, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(exporter.url + path, headers=headers), timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
def served() -> Iterator[Exporter]:
    registry = CollectorRegistry()
    Counter("steps", "Steps.", registry=registry).inc(5)
    exposition = Exposition(registry)

    def fail(request: Request) -> Response:
        raise RuntimeError("broken")

    routes = {
        "/metrics": lambda request: exposition.render(request.headers.get("accept", "")),
        "/echo": lambda request: Response(json.dumps(dict(request.query)).encode()),
        "/broken": fail,
        "/long": lambda request: Response(b"x" * (64 << 20)),
    }
    exporter = Exporter(routes, address="127.0.0.1", port=0)
    yield exporter
    exporter.close()


def test_metrics_come_as_text_or_as_openmetrics(served: Exporter) -> None:
    status, text = get(served, "/metrics")
    assert (status, "steps_total 5.0\n" in text, "_created" in text) == (200, True, False)
    _, text = get(served, "/metrics", Accept="application/openmetrics-text; version=1.0.0; charset=utf-8")
    assert text.endswith("# EOF\n")


def test_paths_queries_and_faults_are_answered(served: Exporter) -> None:
    assert get(served, "/echo?from=10&rank=2") == (200, '{"from": "10", "rank": "2"}')
    status, text = get(served, "/nothing")
    assert (status, "try /broken, /echo" in text) == (404, True)
    assert get(served, "/broken") == (500, "/broken failed: RuntimeError: broken\n")
    assert get(served, "/metrics")[0] == 200


def test_twenty_scrapers_are_served_while_others_send_nothing_or_read_nothing(served: Exporter) -> None:
    address = ("127.0.0.1", served.port)
    silent = [socket.create_connection(address) for _ in range(4)]
    deaf = [socket.create_connection(address) for _ in range(4)]
    for connection in deaf:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /long HTTP/1.0\r\n\r\n")
    try:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda _: get(served, "/metrics"), range(60)))
        assert {status for status, _ in answers} == {200}
        assert len({text for _, text in answers}) == 1
    finally:
        for connection in (*silent, *deaf):
            connection.close()


def test_stuck_clients_are_dropped_so_that_their_threads_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter_module._Handler, "timeout", 0.2)
    exporter = Exporter({"/": lambda request: Response(b"{}")}, address="127.0.0.1", port=0)
    stuck = [socket.create_connection(("127.0.0.1", exporter.port)) for _ in range(3 * exporter_module.MAX_CLIENTS)]
    try:
        for connection in stuck:
            connection.settimeout(20)
            assert connection.recv(10) == b"", "the server hangs up: at once where threads are short, else at the time limit"
        assert get(exporter, "/") == (200, "{}")
    finally:
        for connection in stuck:
            connection.close()
        exporter.close()


def test_a_busy_port_moves_to_the_next_one_of_this_rank() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        exporter = Exporter({"/": lambda request: Response(b"{}")}, address="127.0.0.1", port=port, port_step=100)
        try:
            assert exporter.moved
            assert exporter.port != port
            assert (exporter.port - port) % 100 == 0 or port > 65535 - 100
            assert get(exporter, "/")[0] == 200
        finally:
            exporter.close()


def test_a_port_is_free_again_after_close() -> None:
    first = Exporter({}, address="127.0.0.1", port=0)
    first.close()
    second = Exporter({}, address="127.0.0.1", port=first.port)
    assert second.port == first.port
    second.close()


def test_one_text_serves_all_who_ask_at_the_same_time() -> None:
    asked: list[int] = []

    class Counting(Collector):
        def collect(self) -> list[Metric]:
            asked.append(1)
            return [GaugeMetricFamily("loss", "Loss.", value=len(asked))]

        def describe(self) -> list[Metric]:
            return []

    registry = CollectorRegistry()
    registry.register(Counting())
    patient, hasty = Exposition(registry, max_age_s=3600), Exposition(registry, max_age_s=-1)
    assert len({patient.render().body for _ in range(10)}) == 1
    assert len(asked) == 1
    assert len({hasty.render().body for _ in range(10)}) == 10
