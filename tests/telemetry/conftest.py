"""A run directory per test, and a session that is closed whatever the test does."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.telemetry import RunDirectory, RunInfo
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.session import RankTelemetry, Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings

INFO = RunInfo(
    run_id="gpt", stage_to_rank=(0, 1, 2), ranks=3, micro_batches=8, schedule="1f1b", plan={"cuts": [2, 4]}, schedule_bubble_ratio=0.2
)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "runs" / "gpt", INFO)


@pytest.fixture
def start(run: RunDirectory) -> Iterator[Callable[..., RankTelemetry]]:
    """Start telemetry of a rank on a free port with short intervals."""
    started: list[Telemetry] = []

    def start_rank(rank: int = 1, *, run: RunDirectory = run, **options: Any) -> RankTelemetry:
        settings = {"port": 0, "flush_s": 0.02, "heartbeat_s": 0.02, "hardware_s": 0.02, **options.pop("settings", {})}
        telemetry = Telemetry.start(TelemetrySettings(**settings), run, RankLayout.from_info(INFO, rank), **options)
        started.append(telemetry)
        assert isinstance(telemetry, RankTelemetry)
        return telemetry

    yield start_rank
    for telemetry in started:
        telemetry.close()
