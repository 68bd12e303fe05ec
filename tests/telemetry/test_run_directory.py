import json
import os
import threading
from pathlib import Path

import pytest

from pptoolkit.errors import RunError
from pptoolkit.plan import Plan
from pptoolkit.telemetry import Attempt, Endpoint, RunDirectory, RunInfo, RunStatus, list_runs
from pptoolkit.telemetry.json_files import replace_json, to_json


def test_a_created_run_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    plan = Plan(cuts=(3, 7), micro_batches=4)
    info = RunInfo(run_id="a", plan=plan.to_dict(), config={"lr": 3e-4, "path": "x"}, attempts=(Attempt(attempt=0, started_unix_s=1.5),))
    run = RunDirectory.create(tmp_path / "a", info)
    read = run.read_info()
    assert read.evolve(updated_unix_s=0.0) == info
    assert read.read_plan() == plan
    assert json.loads(run.info_path.read_text())["schema"] == 1
    assert run.segment_path(3, 0, 12) == run.path / "events" / "rank-00003.attempt-0.seg-000012.arrows"


def test_a_second_run_at_the_same_place_is_refused_unless_it_continues(run: RunDirectory) -> None:
    with pytest.raises(RunError, match=r"already a run at .*gpt; .*--resume"):
        RunDirectory.create(run.path, RunInfo(run_id="other"))
    RunDirectory.create(run.path, RunInfo(run_id="gpt", steps=7), exist_ok=True)
    assert run.read_info().steps == 7


def test_a_file_in_the_place_of_the_directory_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RunError, match=r"cannot write .*runs/gpt: Not a directory.*--run"):
        RunDirectory.create(tmp_path / "runs" / "gpt", RunInfo(run_id="gpt"))


def test_a_missing_run_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no run at .*nothing \(no run.json\)"):
        RunDirectory(tmp_path / "nothing").read_info()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"run_id": "gpt"', "not readable JSON"),
        ("[1, 2]", "not readable JSON"),
        ('{"schema": 99, "run_id": "gpt"}', "has schema 99, not 1"),
        ('{"schema": 1, "run_id": "gpt", "ranks": "many"}', "ranks='many'"),
        ("\x00\x00\x00", "not readable JSON"),
    ],
)
def test_a_damaged_run_json_is_an_error_with_its_place(run: RunDirectory, text: str, message: str) -> None:
    run.info_path.write_text(text)
    with pytest.raises(RunError, match=message) as caught:
        run.read_info()
    assert str(run.info_path) in str(caught.value)


def test_keys_of_a_newer_release_survive_an_update(run: RunDirectory) -> None:
    body = json.loads(run.info_path.read_text())
    replace_json(run.info_path, {**body, "invented_later": [1, 2], "attempts": [{"attempt": 0, "started_unix_s": 1, "node": "x"}]})
    run.update_info(status=RunStatus.FAILED, message="rank 1 is gone")
    body = json.loads(run.info_path.read_text())
    assert body["invented_later"] == [1, 2]
    assert body["attempts"][0]["node"] == "x"
    assert (body["status"], body["message"]) == ("failed", "rank 1 is gone")


def test_no_update_is_lost_when_many_threads_update_at_once(run: RunDirectory) -> None:
    def add(rank: int) -> None:
        for _ in range(5):
            run.update_info(lambda info: info.evolve(steps=info.steps + 1))
        run.register_endpoint(Endpoint(rank=rank, url=f"http://127.0.0.1:{9100 + rank}", host="h"))

    threads = [threading.Thread(target=add, args=(rank,)) for rank in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    info = run.read_info()
    assert info.steps == 30
    assert [e.rank for e in info.endpoints] == list(range(6))
    targets = json.loads(run.discovery_path.read_text())
    assert [t["targets"] for t in targets] == [[f"127.0.0.1:{9100 + rank}"] for rank in range(6)]
    assert targets[4]["labels"] == {"run_id": "gpt", "rank": "4", "replica": "0", "host": "h"}


def test_a_closed_rank_leaves_service_discovery_but_run_json_remembers_it(run: RunDirectory) -> None:
    for rank in (0, 1):
        run.register_endpoint(Endpoint(rank=rank, url=f"http://127.0.0.1:{9100 + rank}"))
    run.unregister_endpoint(0)
    assert [t["labels"]["rank"] for t in json.loads(run.discovery_path.read_text())] == ["1"]
    assert [e.rank for e in run.read_info().endpoints] == [0, 1]
    run.unregister_endpoint()
    assert json.loads(run.discovery_path.read_text()) == []


def test_the_targets_of_all_runs_lie_in_one_folder_and_only_while_a_run_has_some(run: RunDirectory) -> None:
    shared = run.path.parent / "prometheus-sd" / "gpt.json"
    run.register_endpoint(Endpoint(rank=0, url="http://127.0.0.1:9100"))
    assert json.loads(shared.read_text()) == json.loads(run.discovery_path.read_text()) != []
    run.unregister_endpoint()
    assert list(shared.parent.iterdir()) == []
    assert [found.path.name for found in list_runs(run.path.parent)] == ["gpt"]


def test_runs_are_listed_with_the_most_recent_first(tmp_path: Path) -> None:
    for age, name in enumerate(["new", "middle", "old"]):
        run = RunDirectory.create(tmp_path / name, RunInfo(run_id=name))
        os.utime(run.info_path, (1000 - age, 1000 - age))
    (tmp_path / "no-run").mkdir()
    assert [r.path.name for r in list_runs(tmp_path)] == ["new", "middle", "old"]
    assert [r.path.name for r in list_runs(tmp_path / "old")] == ["old"]
    assert list_runs(tmp_path / "missing") == []


def test_json_stays_valid_with_numbers_that_json_does_not_know() -> None:
    text = to_json({"loss": float("nan"), "norms": [float("inf"), float("-inf"), 1.5], "path": Path("x"), "status": RunStatus.FAILED})
    body = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert body == {"loss": "NaN", "norms": ["Infinity", "-Infinity", 1.5], "path": "x", "status": "failed"}


def test_a_failed_replace_leaves_the_old_file_and_no_partial_one(run: RunDirectory) -> None:
    before = run.info_path.read_text()
    (run.path / "folder").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_json(run.path / "folder", {})
    assert run.info_path.read_text() == before
    assert not list(run.path.glob(".*.partial"))
