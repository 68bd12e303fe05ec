"""What ``pptoolkit prometheus config`` prints is accepted by promtool and watches what was asked for."""

import subprocess
from pathlib import Path

import pytest
import yaml

from grafana import FOLDER
from pptoolkit.cli.main import run
from pptoolkit.errors import ConfigError
from pptoolkit.monitoring.scrape_config import ScrapeConfig
from pptoolkit.telemetry import Endpoint, RunDirectory, RunInfo
from pptoolkit.telemetry.exporter import Exporter, Exposition
from pptoolkit.telemetry.metrics import RankMetrics
from pptoolkit.telemetry.security import EndpointSecurity
from tests.support.certificates import make_certificates
from tests.support.prometheus import find_tool, prometheus_server
from tests.support.stand_in import wait_until
from tests.telemetry.test_metrics import LAYOUT, fill


def promtool(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([find_tool("promtool"), *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_printed_configuration_passes_promtool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--runs", str(tmp_path / 'my "odd" runs'), "--sd", "http://far:9100/sd", "--pushgateway", "https://gate.example/push"]
    assert run(["prometheus", "config", *options]) == 0
    (tmp_path / "prometheus.yml").write_text(capsys.readouterr().out)
    checked = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "20 rules found" in checked.stdout
    body = yaml.safe_load((tmp_path / "prometheus.yml").read_text())
    ranks, final = body["scrape_configs"]
    assert ranks["file_sd_configs"][0]["files"] == [str(tmp_path / 'my "odd" runs' / "prometheus-sd" / "*.json")]
    assert ranks["http_sd_configs"][0]["url"] == "http://far:9100/sd"
    assert (final["scheme"], final["metrics_path"], final["honor_labels"]) == ("https", "/push/metrics", True)
    assert final["static_configs"] == [{"targets": ["gate.example"]}]


def test_written_to_a_file_it_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "p.yml"
    assert run(["prometheus", "config", "-o", str(target)]) == 0
    assert "promtool check config" in (said := capsys.readouterr().out)
    assert "--web.listen-address=127.0.0.1:9090" in said
    assert yaml.safe_load(target.read_text())["scrape_configs"][0]["file_sd_configs"][0]["files"] == [
        str(Path.cwd() / "runs" / "prometheus-sd" / "*.json")
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sd", "rank0:9100"], "'rank0:9100' is no address"),
        (["--pushgateway", "http://"], "is no address"),
        (["--rules", "missing.yml"], "there is no rule file at missing.yml"),
        (["--runs", "runs/*"], "takes no wildcard"),
        (["-o", "missing/p.yml"], "cannot write missing/p.yml"),
    ],
)
def test_wrong_options_end_with_code_2_and_a_remedy(options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prometheus", "config", *options]) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_is_told_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prometheus", "config", "--run", "x"]) == 2
    assert "No such option: --run" in capsys.readouterr().err
    assert run(["prometheus"]) == 2


def test_ranks_behind_tls_and_a_token_are_scraped_by_a_real_prometheus(tmp_path: Path) -> None:
    certificates, token = make_certificates(tmp_path), "0123456789abcdef-of-the-run"
    (tmp_path / "token").write_text(token + "\n")
    metrics = RankMetrics(LAYOUT)
    fill(metrics)
    exposition = Exposition(metrics.registry)
    security = EndpointSecurity(tls_cert=certificates.server, tls_key=certificates.server_key, tls_client_ca=certificates.ca, token=token)
    routes = {"/metrics": lambda request: exposition.render(request.headers.get("accept", ""))}
    exporter = Exporter(routes, address="127.0.0.1", port=0, security=security)
    run = RunDirectory.create(tmp_path / "runs" / "locked", RunInfo(run_id="locked"))
    run.register_endpoint(Endpoint(rank=LAYOUT.rank, url=exporter.url, host="locked"))
    keys = {"ca": Path(certificates.ca), "cert": Path(certificates.client), "key": Path(certificates.client_key)}
    config = ScrapeConfig(runs=tmp_path / "runs", interval_s=1, token_file=tmp_path / "token", **keys)
    try:
        with prometheus_server(tmp_path / "prometheus", config.render()) as prometheus:
            wait_until(lambda: prometheus.value('pptoolkit_loss{run_id="locked"}') == 2.5, limit_s=60)
    finally:
        exporter.close()
    assert token not in config.render()


@pytest.mark.parametrize("half", [{"cert": "x"}, {"key": "x"}, {"ca": "missing.pem"}, {"token_file": "missing"}])
def test_half_of_a_pair_and_missing_files_are_refused(half: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is given without|there is no file"):
        ScrapeConfig(runs=tmp_path, **{name: Path(value) for name, value in half.items()})


def test_nothing_to_watch_and_no_interval_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to scrape"):
        ScrapeConfig()
    with pytest.raises(ConfigError, match="interval_s=0"):
        ScrapeConfig(runs=Path("runs"), interval_s=0)


def test_the_file_for_containers_is_what_the_command_makes_of_its_paths() -> None:
    made = ScrapeConfig(runs=Path("/runs"), rules=(Path("/etc/prometheus/pptoolkit.rules.yml"),)).render()
    assert yaml.safe_load((FOLDER / "prometheus.yml").read_text()) == yaml.safe_load(made)
