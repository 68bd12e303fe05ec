"""A short run's last values reach a Pushgateway, and one that is slow, wrong or away costs a warning and seconds, never training."""

import logging
import socket
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry, Counter

from pptoolkit.config import RunConfig
from pptoolkit.errors import ConfigError
from pptoolkit.telemetry import RunDirectory, StepSummary
from pptoolkit.telemetry.pushgateway import push_final
from pptoolkit.telemetry.session import RankTelemetry
from tests.support.pushgateway import Pushgateway
from tests.support.stand_in import Answer, served

Start = Callable[..., RankTelemetry]


def train(telemetry: RankTelemetry) -> None:
    telemetry.recorder.begin_step(0)
    telemetry.recorder.end_step()
    telemetry.step_done(StepSummary(step=0, loss=2.5, samples=8, tokens=80))


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_each_rank_leaves_its_final_values_under_its_own_labels(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    gateway = Pushgateway()
    with served(gateway) as url:
        for rank in (0, 1):
            telemetry = start(rank, settings={"pushgateway": url})
            train(telemetry)
            telemetry.close()
    assert [dict(key)["rank"] for key in sorted(gateway.groups)] == ["0", "1"]
    text = gateway.text()
    common = f'host="{socket.gethostname()}",job="pptoolkit-final",rank="1",replica="0",run_id="gpt"'
    assert f"pptoolkit_steps_total{{{common}}} 1.0\n" in text
    assert f"pptoolkit_loss{{{common}}} 2.5\n" in text
    assert "_created" not in text
    assert warnings(caplog) == []


def test_a_second_push_replaces_the_first(start: Start) -> None:
    gateway, registry = Pushgateway(), CollectorRegistry()
    counter = Counter("steps", "Steps.", registry=registry)
    labels = {"run_id": "with/slash and blank", "rank": "0", "replica": ""}
    with served(gateway) as url:
        for _ in range(2):
            counter.inc()
            assert push_final(url, registry, labels) == ""
    (key,) = gateway.groups
    assert dict(key) == {"job": "pptoolkit-final", **labels}
    assert "steps_total 2.0" in gateway.groups[key]


@pytest.mark.parametrize(
    ("respond", "reason"),
    [
        (lambda asked: Answer(500, b"out of order"), "500"),
        (lambda asked: Answer(401, b"who are you?"), "401"),
        (lambda asked: Answer(200, b"", delay_s=60), "no answer within 0.5 s"),
    ],
)
def test_a_gateway_that_refuses_or_hangs_is_one_warning_and_the_values_are_in_the_run_directory(
    respond: Callable[..., Answer],
    reason: str,
    run: RunDirectory,
    start: Start,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(push_final, "__kwdefaults__", {"limit_s": 0.5})
    with served(respond) as url:
        telemetry = start(settings={"pushgateway": url})
        train(telemetry)
        began = time.monotonic()
        telemetry.close()
        assert time.monotonic() - began < 20, "the hanging answer alone takes a minute"
    (message,) = warnings(caplog)
    assert f"cannot push the final metrics to {url}" in message
    assert reason in message or "timed out" in message
    assert "they are in " in message
    assert "training goes on" in message
    assert "pptoolkit_steps_total 1.0\n" in run.metrics_path(1).read_text()


def test_a_wrong_address_in_a_job_file_is_found_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match=r'\[telemetry\] pushgateway=.localhost:9091. is no address; write it like "http://'):
        RunConfig.from_dict({"telemetry": {"pushgateway": "localhost:9091"}}, where="job.toml")
    assert RunConfig.from_dict({"telemetry": {"pushgateway": "https://gate"}}, where="job.toml").telemetry.pushgateway == "https://gate"


def test_no_gateway_at_all_is_one_warning(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    telemetry = start(settings={"pushgateway": f"http://127.0.0.1:{port}"})
    train(telemetry)
    telemetry.close()
    (message,) = warnings(caplog)
    assert "refused" in message
