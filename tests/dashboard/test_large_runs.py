"""Reading many ranks at once: the same events as rank by rank, in one piece."""

from pathlib import Path

import pytest

from benchmarks.large_runs import LargeRun
from dashboard.data import WatchedRun
from pptoolkit.telemetry import EventReader


def test_many_ranks_are_read_as_one_table_with_each_ranks_own_events(tmp_path: Path) -> None:
    run = LargeRun(root=tmp_path, run_id="many", ranks=12).train(3)
    reader = EventReader(run.directory)
    table = reader.poll()
    apart = [EventReader(run.directory, ranks=[rank]).poll() for rank in range(12)]
    assert table.num_rows == 3 * run.events_per_step
    assert table.to_pylist() == [row for part in apart for row in part.to_pylist()]
    assert {column.num_chunks for column in table.columns} == {1}
    run.train(1)
    assert sorted(reader.poll()["step"].unique().to_pylist()) == [3]
    assert reader.poll().num_rows == 0


def test_signs_of_life_that_are_dear_to_read_are_kept_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = LargeRun(root=tmp_path, run_id="many", ranks=2).train(1)
    monkeypatch.setattr("dashboard.data.POLL_EVERY_S", 0.0)
    watched = WatchedRun(run.directory.path)
    for kept in (False, True):
        monkeypatch.setattr("dashboard.data._BEATS_SHARE", 10**9 if kept else 0)  # so many times what reading them took
        watched.refresh()
        before = watched.heartbeats()
        run.train(1)
        watched.refresh()
        assert (watched.heartbeats() == before) is kept
