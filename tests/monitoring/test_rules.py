"""Every alert is well formed, has a section in the runbook, fires when it must and is silent when it must not."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from grafana import RULES
from tests.support.prometheus import find_tool

TESTS = RULES.with_name("pptoolkit.test.yml")
RUNBOOK = Path(__file__).parents[2] / "docs" / "runbook.md"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]


def promtool(*arguments: str, folder: Path = RULES.parent) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([find_tool("promtool"), *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES.name)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_rules_pass_their_own_tests() -> None:
    tested = promtool("test", "rules", TESTS.name)
    assert tested.returncode == 0, tested.stdout + tested.stderr


@pytest.mark.parametrize("broken", ["vector(0) > 1", "vector(1)"], ids=["never", "always"])
def test_the_tests_of_every_alert_notice_when_it_never_fires_and_when_it_always_does(broken: str, tmp_path: Path) -> None:
    body = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in body["groups"] for rule in group["rules"] if "alert" in rule):
        rule["expr"] = broken
    (tmp_path / RULES.name).write_text(yaml.safe_dump(body))
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    told = promtool("test", "rules", TESTS.name, folder=tmp_path)
    assert told.returncode != 0
    assert set(re.findall(r"alertname: (\w+)", told.stdout + told.stderr)) == {rule["alert"] for rule in ALERTS}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda rule: rule["alert"])
def test_every_alert_says_what_it_means_and_where_help_is(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning")
    assert re.fullmatch(r"[A-Z].{10,}", alert["annotations"]["summary"]) or alert["annotations"]["summary"].startswith("{{")
    assert len(alert["annotations"]["description"]) > 60
    page, _, section = alert["annotations"]["runbook_url"].partition("#")
    assert page == "docs/runbook.md"
    headings = {re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-") for line in _headings()}
    assert section in headings


def test_the_runbook_has_no_section_without_an_alert() -> None:
    sections = {re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-") for line in _headings()}
    assert sections == {alert["annotations"]["runbook_url"].partition("#")[2] for alert in ALERTS}


def test_all_ten_conditions_are_watched() -> None:
    assert [rule["alert"].removeprefix("PPToolkit") for rule in ALERTS] == [
        "RankDown",
        "HeartbeatLost",
        "StepStalled",
        "StageBottleneck",
        "BubbleAboveSchedule",
        "LinkDegraded",
        "MemoryHeadroom",
        "TelemetryLoss",
        "LossNotFinite",
        "CheckpointTooOld",
    ]


def _headings() -> list[str]:
    return [line for line in RUNBOOK.read_text().splitlines() if line.startswith("## ")]
