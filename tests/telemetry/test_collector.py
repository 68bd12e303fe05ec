"""Copying a run from its ranks: everything arrives, a break costs nothing, and what is missing is said."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.cli import main
from pptoolkit.errors import RunError
from pptoolkit.telemetry import EventReader, Op, RunDirectory, RunInfo, ScalarReader, StepSummary
from pptoolkit.telemetry import endpoint as endpoint_module
from pptoolkit.telemetry.collector import Collector
from pptoolkit.telemetry.endpoint_client import EndpointClient, EndpointError
from pptoolkit.telemetry.heartbeat import read_heartbeats
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.security import ClientCredentials
from pptoolkit.telemetry.session import RankTelemetry, Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings

INFO = RunInfo(run_id="gpt", stage_to_rank=(0, 1), ranks=2, micro_batches=4, schedule="1f1b", created_unix_s=123.25, status="running")
Hosts = Callable[..., RankTelemetry]


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Start telemetry of a rank on a host of its own: a run directory that no other rank sees."""
    started: list[Telemetry] = []

    def start(rank: int, *, host: str = "", attempt: int = 0, **settings: Any) -> RankTelemetry:
        path = tmp_path / (host or f"host{rank}") / "gpt"
        run = RunDirectory(path) if path.exists() else RunDirectory.create(path, INFO)
        quick = {"port": 0, "flush_s": 0.02, "heartbeat_s": 0.02, "hardware_s": 0.5, **settings}
        telemetry = Telemetry.start(TelemetrySettings(**quick), run, RankLayout.from_info(INFO, rank), attempt=attempt)
        assert isinstance(telemetry, RankTelemetry)
        for other in started:
            telemetry.add_peers([other.endpoint] if other.endpoint else [])
            other.add_peers([telemetry.endpoint] if telemetry.endpoint else [])
        started.append(telemetry)
        return telemetry

    yield start
    monkeypatch.setattr(endpoint_module, "LINGER_S", 0.1)  # the collectors of these tests are gone by now
    for telemetry in started:
        telemetry.close()


def train(telemetry: Telemetry, steps: int, *, first: int = 0) -> None:
    recorder = telemetry.recorder
    for step in range(first, first + steps):
        recorder.begin_step(step)
        for m in range(4):
            with recorder.span(Op.FORWARD, stage=telemetry._layout.rank, micro_batch=m):  # type: ignore[attr-defined]
                pass
        recorder.end_step()
        telemetry.step_done(StepSummary(step=step, loss=1.0 / (step + 1), samples=8))
    assert telemetry.flush(timeout_s=20)


def collector_of(telemetry: RankTelemetry) -> Collector:
    return Collector(telemetry.endpoint.url if telemetry.endpoint else "", EndpointClient(ClientCredentials(), timeout_s=10))


def seen(run: RunDirectory) -> set[tuple[int, int]]:
    events = EventReader(run).read_all().to_pandas()
    whole = events[events["op"] == int(Op.STEP)]
    return {(int(rank), int(step)) for rank, step in zip(whole["rank"], whole["step"], strict=True)}


def same_files(copy: RunDirectory, *origins: Path) -> None:
    for folder in ("events", "scalars"):
        theirs = {path.name: path.read_bytes() for origin in origins for path in (origin / folder).iterdir()}
        assert {path.name: path.read_bytes() for path in (copy.path / folder).iterdir()} == theirs


def test_every_ranks_events_come_through_rank_0_with_no_shared_disk(tmp_path: Path, hosts: Hosts) -> None:
    ranks = hosts(0), hosts(1)
    collector = collector_of(ranks[0])
    copy = collector.open(tmp_path / "copy")
    assert (copy.read_info().run_id, copy.read_info().ranks) == ("gpt", 2)
    for first in (0, 3):
        for rank in ranks:
            train(rank, 3, first=first)
        collector.poll()
        assert seen(copy) == {(rank, step) for rank in (0, 1) for step in range(first + 3)}
    assert len(ScalarReader(copy).poll()) == 12
    assert [beat.rank for beat in read_heartbeats(copy)] == [0, 1]
    same_files(copy, tmp_path / "host0/gpt", tmp_path / "host1/gpt")


def test_a_collector_that_was_killed_goes_on_where_its_copy_ends(tmp_path: Path, hosts: Hosts) -> None:
    ranks = hosts(0), hosts(1)
    for rank in ranks:
        train(rank, 20)
    first = collector_of(ranks[0])
    copy = first.open(tmp_path / "copy")
    first.poll()
    # Killed in the middle of a write: the last file is shorter than what was fetched.
    torn = copy.segment_path(1, 0, 0)
    torn.write_bytes(torn.read_bytes()[:-301])
    for rank in ranks:
        train(rank, 5, first=20)
    second = collector_of(ranks[0])
    second.open(tmp_path / "copy")
    taken = second.poll().bytes
    same_files(copy, tmp_path / "host0/gpt", tmp_path / "host1/gpt")
    whole = sum(path.stat().st_size for folder in ("events", "scalars") for path in (copy.path / folder).iterdir())
    assert 0 < taken < whole, "only what was missing is fetched"


def test_a_rank_that_is_gone_is_said_once_and_its_return_too(tmp_path: Path, hosts: Hosts) -> None:
    ranks = hosts(0), hosts(1)
    collector = collector_of(ranks[0])
    copy = collector.open(tmp_path / "copy")
    for rank in ranks:
        train(rank, 2)
    collector.poll()
    endpoint = ranks[1]._endpoint
    assert endpoint is not None
    endpoint._exporter.close()  # as if the process were killed: nothing is told
    notes = [note for _ in range(3) for note in collector.poll().notes]
    assert len(notes) == 1
    assert notes[0].startswith("rank 1 does not answer, and is asked again: ")
    again = hosts(1, attempt=1)
    train(again, 2)
    collector._discovered_s = 0
    assert [note for note in collector.poll().notes if "answers again" in note]
    assert {path.name[:20] for path in (copy.path / "events").iterdir()} == {
        "rank-00000.attempt-0",
        "rank-00001.attempt-0",
        "rank-00001.attempt-1",
    }


def test_the_files_of_a_rank_that_is_gone_come_from_another_rank_of_its_host(tmp_path: Path, hosts: Hosts) -> None:
    ranks = hosts(0, host="one"), hosts(1, host="one")
    collector = collector_of(ranks[0])
    copy = collector.open(tmp_path / "copy")
    collector.poll()
    for rank in ranks:
        train(rank, 3)
    endpoint = ranks[1]._endpoint
    assert endpoint is not None
    endpoint._exporter.close()
    collector.poll()
    assert seen(copy) == {(rank, step) for rank in (0, 1) for step in range(3)}


def test_segments_roll_on_both_sides_alike_and_what_was_removed_before_is_said(tmp_path: Path, hosts: Hosts) -> None:
    rank = hosts(0, segment_bytes=1 << 12, max_bytes=1 << 16)
    collector = collector_of(rank)
    copy = collector.open(tmp_path / "copy")
    for first in range(0, 30, 2):
        train(rank, 2, first=first)
        collector.poll()
    assert len(list((copy.path / "events").iterdir())) > 3
    assert seen(copy) == {(0, step) for step in range(30)}
    for first in range(30, 150):
        train(rank, 1, first=first)
    assert rank.dropped["retention"] > 0
    assert any("event files were removed (telemetry.max_bytes) before they could be collected" in n for n in collector.poll().notes)
    assert (0, 149) in seen(copy)


def test_the_end_of_a_run_is_waited_for_by_its_ranks_and_fetched(tmp_path: Path, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = hosts(0), hosts(1)
    collector = collector_of(ranks[0])
    copy = collector.open(tmp_path / "copy")
    monkeypatch.setattr(endpoint_module, "LINGER_S", 100.0)  # more than the test may take
    collector.poll()
    for rank in ranks:
        rank.recorder.begin_step(0)
        rank.recorder.end_step()
    ranks[0]._run.update_info(status="finished")
    closing = [threading.Thread(target=rank.close, args=("finished",)) for rank in ranks]
    for thread in closing:
        thread.start()
    deadline = time.monotonic() + 20
    while not collector.complete and time.monotonic() < deadline:
        collector.poll()
        time.sleep(0.02)
    for thread in closing:
        thread.join(20)
    assert collector.complete
    assert seen(copy) == {(0, 0), (1, 0)}
    assert copy.read_info().status == "finished"
    assert {beat.status for beat in read_heartbeats(copy)} == {"finished"}


def test_without_a_collector_nobody_is_waited_for(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint_module, "LINGER_S", 100.0)  # more than the test may take
    rank = hosts(0)
    train(rank, 1)
    rank.close()
    assert not rank.drops._warned


def test_a_copy_is_never_made_over_another_run_or_over_the_run_itself(tmp_path: Path, hosts: Hosts) -> None:
    rank = hosts(0)
    with pytest.raises(RunError, match="is where the run itself writes; choose another directory with -o"):
        collector_of(rank).open(tmp_path / "host0/gpt")
    RunDirectory.create(tmp_path / "other", INFO.evolve(created_unix_s=1.0))
    with pytest.raises(RunError, match="holds another run"):
        collector_of(rank).open(tmp_path / "other")


def test_a_file_that_was_replaced_behind_the_collector_is_refused(tmp_path: Path, hosts: Hosts) -> None:
    rank = hosts(0)
    train(rank, 10)
    collector = collector_of(rank)
    collector.open(tmp_path / "copy")
    collector.poll()
    path = RunDirectory(tmp_path / "host0/gpt").scalars_path(0, 0)
    path.write_bytes(path.read_bytes()[:50])
    assert any("it is not the file that was collected" in note for note in collector.poll().notes)


@pytest.mark.parametrize("path", ["/events?from=1.2", "/events?from=x", "/scalars?from=-1.0.0", "/events?from=0&rank=all"])
def test_a_place_that_is_none_is_answered_with_400(hosts: Hosts, path: str) -> None:
    rank = hosts(0)
    with pytest.raises(EndpointError, match=r"answered 400: .* is no place"):
        EndpointClient(ClientCredentials()).get(f"{rank.endpoint.url if rank.endpoint else ''}{path}")


def test_the_command_collects_once_and_ends_with_what_to_do_next(
    tmp_path: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PPTOOLKIT_TOKEN", "0123456789abcdef-secret")
    ranks = [hosts(rank, token="0123456789abcdef-secret") for rank in (0, 1)]
    for rank in ranks:
        train(rank, 2)
    url = ranks[0].endpoint.url if ranks[0].endpoint else ""
    assert main.run(["collect", url, "--once"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "collecting run gpt (2 ranks) into runs/gpt" in said
    assert "see it with: pptoolkit report runs/gpt" in said
    assert seen(RunDirectory(tmp_path / "runs/gpt")) == {(rank, step) for rank in (0, 1) for step in (0, 1)}
    monkeypatch.delenv("PPTOOLKIT_TOKEN")
    shutil.rmtree(tmp_path / "runs")
    assert main.run(["collect", url, "--once"]) == 1
    assert "asks for its token (401)" in " ".join(capsys.readouterr().err.split())


def test_the_command_names_a_rank_that_it_could_not_get(tmp_path: Path, hosts: Hosts, capsys: pytest.CaptureFixture[str]) -> None:
    ranks = hosts(0), hosts(1)
    endpoint = ranks[1]._endpoint
    assert endpoint is not None
    endpoint._exporter.close()
    url = ranks[0].endpoint.url if ranks[0].endpoint else ""
    assert main.run(["collect", url, "--once", "-o", str(tmp_path / "copy")]) == 1
    assert "not all of rank 1" in capsys.readouterr().out
