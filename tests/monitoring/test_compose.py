"""The containers: valid by the compose specification, on loopback, with every path there and every port the one of the code."""

import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pptoolkit.cli import serve
from pptoolkit.cli.main import app
from pptoolkit.config import TelemetryConfig
from pptoolkit.monitoring.grafana_push import DATA_SOURCE_NAME, DATA_SOURCE_UID, DEFAULT_PROMETHEUS, FOLDER_UID
from pptoolkit.monitoring.grafana_server import DEFAULT_URL
from pptoolkit.monitoring.scrape_config import PROMETHEUS_PORT
from pptoolkit.telemetry.run_directory import SHARED_DISCOVERY
from pptoolkit.telemetry.settings import TelemetrySettings

ROOT = Path(__file__).parents[2]
SCHEMA = ROOT.parent / "shared" / "data" / "compose-spec.json"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def mounts(service: str) -> dict[str, str]:
    """Return source by target."""
    return {target: source for source, target in (entry.split(":")[:2] for entry in SERVICES[service]["volumes"])}


def test_the_file_follows_the_compose_specification() -> None:
    if not SCHEMA.exists():
        pytest.skip("the compose schema is not here (../shared/data/compose-spec.json)")
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed (pip install 'pptoolkit[dev]')")
    schema = json.loads(SCHEMA.read_text())
    validator = jsonschema.Draft7Validator(schema)
    assert [error.message for error in validator.iter_errors(COMPOSE)] == []
    assert list(validator.iter_errors({"services": {"x": {"imag": "y"}}})), "the schema notices a misspelt key"


def test_every_mounted_path_exists_and_every_volume_is_declared() -> None:
    for name in SERVICES:
        for target, source in mounts(name).items():
            assert target.startswith("/")
            if source.startswith("."):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
    assert {mounts(name).get("/runs") for name in ("trainer", "dashboard", "prometheus")} == {"runs"}


def test_everything_listens_on_loopback_at_the_ports_of_the_code() -> None:
    assert all(service["network_mode"] == "host" and "ports" not in service for service in SERVICES.values())
    assert f"--web.listen-address=127.0.0.1:{PROMETHEUS_PORT}" in SERVICES["prometheus"]["command"]
    grafana = SERVICES["grafana"]["environment"]
    assert (grafana["GF_SERVER_HTTP_ADDR"], f"http://localhost:{grafana['GF_SERVER_HTTP_PORT']}") == ("127.0.0.1", DEFAULT_URL)
    assert (grafana["GF_AUTH_ANONYMOUS_ENABLED"], grafana["GF_AUTH_ANONYMOUS_ORG_ROLE"]) == ("true", "Viewer")
    port = inspect.signature(serve.dashboard).parameters["port"].default
    assert SERVICES["dashboard"]["command"][-2:] == ["--port", str(port)]
    assert (port, TelemetrySettings().port, TelemetryConfig().port, TelemetrySettings().address) == (8501, 9100, 9100, "127.0.0.1")


def test_prometheus_finds_its_files_and_the_runs() -> None:
    targets = mounts("prometheus")
    body = yaml.safe_load((ROOT / "grafana/prometheus.yml").read_text())
    assert "--config.file=/etc/prometheus/prometheus.yml" in SERVICES["prometheus"]["command"]
    assert targets["/etc/prometheus/prometheus.yml"] == "./grafana/prometheus.yml"
    assert [targets[path] for path in body["rule_files"]] == ["./grafana/rules/pptoolkit.rules.yml"]
    (watched,) = body["scrape_configs"][0]["file_sd_configs"][0]["files"]
    assert watched == f"/runs/{SHARED_DISCOVERY}/*.json"


def test_grafana_is_provisioned_with_what_a_push_would_find() -> None:
    targets = mounts("grafana")
    assert targets["/etc/grafana/provisioning"] == "./grafana/provisioning"
    (source,) = yaml.safe_load((ROOT / "grafana/provisioning/datasources/pptoolkit.yml").read_text())["datasources"]
    assert (source["uid"], source["name"], source["type"]) == (DATA_SOURCE_UID, DATA_SOURCE_NAME, "prometheus")
    assert source["url"].replace("127.0.0.1", "localhost") == DEFAULT_PROMETHEUS == f"http://localhost:{PROMETHEUS_PORT}"
    (provider,) = yaml.safe_load((ROOT / "grafana/provisioning/dashboards/pptoolkit.yml").read_text())["providers"]
    assert (provider["folderUid"], targets[provider["options"]["path"]]) == (FOLDER_UID, "./grafana/dashboards")
    home = Path(SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (ROOT / targets[str(home.parent)] / home.name).is_file()


@pytest.mark.parametrize("service", ["trainer", "dashboard"])
def test_the_commands_are_commands_of_ours(service: str) -> None:
    program, name, *arguments = SERVICES[service]["command"]
    assert program == "pptoolkit"
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, list(arguments)) as context:
        assert str(context.params.get("run", context.params.get("runs"))).startswith("/runs")
        assert "config" not in context.params or (ROOT / context.params["config"]).is_file()


def test_images_are_pinned() -> None:
    for service in SERVICES.values():
        assert re.fullmatch(r"[\w./-]+:(v?\d+\.\d+\.\d+|local)", service["image"])


def test_the_dockerfile_copies_what_is_there_and_installs_what_is_declared() -> None:
    text = (ROOT / "Dockerfile").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = [word for line in re.findall(r"^COPY (.+)$", text, re.M) for word in line.split()[:-1]]
    assert [source for source in sources if not (ROOT / source).exists()] == []
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(sources)
    (extras,) = re.findall(r'"\.\[([\w,]+)\]"', text)
    assert set(extras.split(",")) <= set(project["project"]["optional-dependencies"])
    (python,) = re.findall(r"^FROM python:([\d.]+)", text, re.M)
    least = project["project"]["requires-python"].removeprefix(">=")
    assert tuple(map(int, python.split("."))) >= tuple(map(int, least.split(".")))
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".git", ".venv", "runs"} <= set(ignored)
    assert not set(sources) & set(ignored)
