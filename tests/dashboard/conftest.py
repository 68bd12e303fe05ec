"""A folder of runs and timelines that the simulator made."""

from pathlib import Path

import pandas as pd
import pytest

from pptoolkit.telemetry import EventReader
from tests.dashboard.synthetic import SyntheticRun


def read_timeline(run: SyntheticRun) -> pd.DataFrame:
    frame: pd.DataFrame = EventReader(run.directory).read_all().to_pandas()
    return frame.sort_values("start_ns", kind="stable", ignore_index=True)


@pytest.fixture(scope="session")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """Six steps of 4 stages and 8 micro-batches under 1F1B."""
    return read_timeline(SyntheticRun(root=tmp_path_factory.mktemp("timeline"), run_id="six-steps").train(6).finish())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "runs"
