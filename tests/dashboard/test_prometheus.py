"""Live metrics: what a real Prometheus, fed by the ranks' own metrics, becomes on the page; and what happens where there is none."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.launch import TOKEN_VARIABLE
from dashboard.prometheus import Prometheus, curve_of, run_table, split_of
from pptoolkit.errors import MonitoringError
from tests.support.prometheus import prometheus_server
from tests.support.stand_in import wait_until

STEP_S, COMPUTE_S = 0.125, 0.075
FAR = 'far " away'  # a name that a careless query would end at


class _Rank(BaseHTTPRequestHandler):
    """A rank's endpoint: eight steps a second since it began."""

    began_s = time.time()

    def do_GET(self) -> None:
        steps = int((time.time() - self.began_s) / STEP_S)
        lines = [
            'pptoolkit_run_info{schedule="1f1b"} 1',
            f"pptoolkit_steps_total {steps}",
            f"pptoolkit_step_duration_seconds_sum {steps * STEP_S}",
            f"pptoolkit_step_duration_seconds_count {steps}",
            f'pptoolkit_rank_time_seconds_total{{state="compute"}} {steps * COMPUTE_S}',
            f'pptoolkit_rank_time_seconds_total{{state="recv_wait"}} {steps * (STEP_S - COMPUTE_S)}',
            "pptoolkit_bubble_ratio 0.4",
            "pptoolkit_loss 2.5",
            f"pptoolkit_heartbeat_timestamp_seconds {time.time()}",
        ]
        body = "\n".join([*lines, ""]).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def rank() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Rank)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join(10)


def config(port: int, run_id: str) -> str:
    targets = [{"targets": [f"127.0.0.1:{port}"], "labels": {"run_id": run_id, "rank": "1", "replica": "0"}}]
    jobs = [{"job_name": "pptoolkit", "static_configs": targets}]
    return json.dumps({"global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"}, "scrape_configs": jobs})


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_scraped_run_is_a_row_with_its_steps_by_state_and_its_curve(tmp_path: Path, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboard.prometheus.WINDOW", "5s")
    with prometheus_server(tmp_path, config(rank, FAR)) as server:
        source = Prometheus(server.url)
        wait_until(lambda: len(curve_of(source, FAR, minutes=1)) > 1, what="some scrapes")
        (row,) = run_table(source).to_dict("records")
        assert (row["run"], row["ranks"], row["loss"], row["bubble"]) == (FAR, 1, 2.5, 40.0)
        assert row["step_ms"] == pytest.approx(1e3 * STEP_S, rel=1e-6)
        assert row["dropped"] != row["dropped"]  # nobody said
        assert split_of(source, FAR) == {1: {"compute": pytest.approx(COMPUTE_S), "recv_wait": pytest.approx(STEP_S - COMPUTE_S)}}
        app = page()
        app.text_input(key="prometheus").set_value(server.url).run()
        assert not app.exception
        assert app.dataframe[0].value["run"].tolist() == [FAR]
        assert {button.proto.label for button in app.get("download_button")} == {"time by rank", "step times"}


def _page() -> None:
    from dashboard.views import live_metrics

    live_metrics.page()


def page() -> AppTest:
    return AppTest.from_function(_page, default_timeout=20).run()


def said(app: AppTest) -> str:
    assert not app.exception
    return "\n".join(str(e.value) for e in [*app.markdown, *app.text])


def test_no_prometheus_a_wrong_address_and_another_program_are_sentences(rank: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = free.getsockname()[1]
    app = page()
    app.text_input(key="prometheus").set_value(f"http://127.0.0.1:{closed}").run()
    assert "does not answer" in said(app)
    app.text_input(key="prometheus").set_value("localhost:9090 please").run()
    assert "is no address of a Prometheus" in said(app)
    app.text_input(key="prometheus").set_value(f"http://127.0.0.1:{rank}").run()
    assert "is another program listening there?" in said(app)


def test_a_dashboard_that_others_can_reach_asks_no_other_machine_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a-token-of-some-length")
    app = page()
    app.text_input(key="prometheus").set_value("http://10.0.0.1:9090").run()
    assert "asks only a Prometheus on its own machine" in said(app)


@pytest.mark.parametrize("address", ["", "file:///etc/passwd", "ftp://host", "http://", "9090"])
def test_only_http_addresses_are_asked(address: str) -> None:
    with pytest.raises(MonitoringError, match="is no address of a Prometheus"):
        Prometheus(address)
