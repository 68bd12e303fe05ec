"""`pptoolkit grafana push` over HTTP: once creates, twice changes nothing, a conflict loses nothing, every refusal is explained."""

import json
import os
import socket
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from grafana import DASHBOARDS
from pptoolkit.cli.main import run as command
from pptoolkit.monitoring.run_events import run_events
from pptoolkit.telemetry import Attempt, RunDirectory, RunInfo
from tests.support.grafana import PASSWORD, TOKEN, Grafana
from tests.support.stand_in import Answer, Asked, served

BOARDS = {body["uid"]: body for body in (json.loads(path.read_text()) for path in DASHBOARDS.glob("*.json"))}
RUN = "pptoolkit-run"


@pytest.fixture
def grafana() -> Grafana:
    return Grafana()


@pytest.fixture
def url(grafana: Grafana) -> Iterator[str]:
    with served(grafana) as address:
        yield address


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A run that was restarted, came from another's plan and has one whole and one unfinished checkpoint."""
    info = RunInfo(
        run_id="gpt & co",
        parent="earlier",
        plan={"cuts": [2, 4]},
        schedule="1f1b",
        ranks=3,
        micro_batches=8,
        attempts=(Attempt(attempt=0, started_unix_s=1000.5), Attempt(attempt=1, started_unix_s=2000)),
    )
    run = RunDirectory.create(tmp_path / "runs" / "gpt & co", info)
    for step, whole in ((100, True), (200, False)):
        run.checkpoint_path(step).mkdir()
        if whole:
            (run.checkpoint_path(step) / "COMPLETE").touch()
            os.utime(run.checkpoint_path(step) / "COMPLETE", (1500, 1500))
    return tmp_path / "runs"


@pytest.fixture
def push(url: str, runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run the command; return its exit code and all that it said."""
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    monkeypatch.setenv("COLUMNS", "300")

    def run(*options: str) -> tuple[int, str]:
        code = command(["grafana", "push", "--url", url, "--runs", str(runs), *options])
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


Push = Callable[..., tuple[int, str]]


def test_the_first_push_creates_everything_as_it_is_shipped(push: Push, grafana: Grafana) -> None:
    code, said = push("--datasource", "http://prometheus:9090")
    assert code == 0, said
    assert {uid: found["title"] for uid, found in grafana.folders.items()} == {"pptoolkit": "pptoolkit"}
    (source,) = grafana.data_sources.values()
    assert (source["uid"], source["type"], source["url"]) == ("pptoolkit-prometheus", "prometheus", "http://prometheus:9090")
    assert {uid: found["folderUid"] for uid, found in grafana.dashboards.items()} == dict.fromkeys(BOARDS, "pptoolkit")
    for uid, body in BOARDS.items():
        assert grafana.dashboards[uid]["dashboard"] == {**body, "id": grafana.dashboards[uid]["dashboard"]["id"], "version": 1}
    assert said.count("created") == 1 + 1 + len(BOARDS) + 1


def test_a_second_push_changes_nothing_and_writes_nothing(push: Push, grafana: Grafana) -> None:
    push()
    before, written = grafana.state, len(grafana.writes)
    code, said = push()
    assert code == 0, said
    assert grafana.state == before
    assert len(grafana.writes) == written
    assert said.count("unchanged") == 1 + 1 + len(BOARDS) + 1


def test_nothing_in_the_run_directory_is_touched(push: Push, runs: Path) -> None:
    def files() -> dict[Path, tuple[int, int]]:
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in runs.rglob("*")}

    before = files()
    push()
    assert files() == before


def test_a_newer_release_updates_what_an_earlier_one_pushed(push: Push, grafana: Grafana) -> None:
    push()
    older = deepcopy(grafana.dashboards[RUN]["dashboard"])
    older["panels"] = older["panels"][:3]
    grafana.dashboards[RUN]["dashboard"] = older
    code, said = push()
    assert code == 0, said
    assert "'pptoolkit: overview of a run': updated" in said
    assert grafana.dashboards[RUN]["dashboard"]["version"] == 2
    assert grafana.dashboards[RUN]["dashboard"]["panels"] == BOARDS[RUN]["panels"]


def test_a_dashboard_that_a_person_changed_is_kept_unless_told_otherwise_and_then_it_is_in_the_history(
    push: Push, grafana: Grafana
) -> None:
    push()
    grafana.edit(RUN, title="My overview", panels=[])
    before = grafana.state
    code, said = push()
    assert code == 1
    assert "kept as it is (someone has changed it in Grafana; --overwrite replaces it" in said
    assert grafana.state == before
    code, said = push("--overwrite")
    assert code == 0, said
    assert grafana.dashboards[RUN]["dashboard"]["panels"] == BOARDS[RUN]["panels"]
    assert [version["data"]["title"] for version in grafana.history[RUN]][1] == "My overview"


def test_a_change_between_our_look_and_our_save_wins(push: Push, grafana: Grafana) -> None:
    push()
    grafana.dashboards[RUN]["dashboard"]["panels"] = []  # as an earlier release left it, so that there is something to update

    def someone_saves(asked: Asked) -> None:
        if asked.path.endswith("/versions?limit=1"):
            grafana.edit(RUN, title="Theirs")

    grafana.after = someone_saves
    code, said = push()
    assert code == 1
    assert "412 'The dashboard has been changed by someone else'" in said
    assert "nothing was overwritten; run the command again" in said
    assert grafana.dashboards[RUN]["dashboard"]["title"] == "Theirs"
    assert "annotations of run 'gpt & co': unchanged" in said, "the rest is pushed all the same"


def test_another_dashboard_with_our_title_is_named_and_left_alone(push: Push, grafana: Grafana) -> None:
    push("--no-annotations")
    grafana.dashboards["hand-made"] = {**grafana.dashboards.pop(RUN)}
    grafana.dashboards["hand-made"]["dashboard"] = {**grafana.dashboards["hand-made"]["dashboard"], "uid": "hand-made"}
    code, said = push()
    assert code == 1
    assert "another dashboard in that folder has this title; rename or remove it in Grafana" in said
    assert RUN not in grafana.dashboards


def test_a_dashboard_that_was_moved_stays_where_it_is(push: Push, grafana: Grafana) -> None:
    push()
    grafana.folders["mine"] = {"id": 99, "uid": "mine", "title": "Mine", "version": 1}
    grafana.dashboards[RUN]["folderUid"] = "mine"
    assert push()[0] == 0
    grafana.dashboards[RUN]["dashboard"]["panels"] = []
    code, said = push()
    assert (code, grafana.dashboards[RUN]["folderUid"]) == (0, "mine"), said
    assert grafana.dashboards[RUN]["dashboard"]["panels"] == BOARDS[RUN]["panels"]


def test_what_is_provisioned_from_files_is_left_to_them(push: Push, grafana: Grafana) -> None:
    push()
    grafana.dashboards[RUN] |= {"provisioned": True, "dashboard": {**grafana.dashboards[RUN]["dashboard"], "panels": []}}
    grafana.data_sources["pptoolkit-prometheus"]["readOnly"] = True
    before = grafana.state
    code, said = push("--datasource", "http://elsewhere:9090")
    assert code == 1
    assert said.count("provisioned from a file") == 2
    assert grafana.state == before


def test_a_new_address_of_the_data_source_leaves_its_other_settings(push: Push, grafana: Grafana) -> None:
    push()
    source = grafana.data_sources["pptoolkit-prometheus"]
    source.update(isDefault=True, basicAuth=True, jsonData={"timeInterval": "30s"}, version=7)
    code, said = push("--datasource", "http://new:9090")
    assert code == 0, said
    assert (source["url"], source["isDefault"], source["basicAuth"], source["jsonData"]) == (
        "http://new:9090",
        True,
        True,
        {"timeInterval": "30s"},
    )
    assert push()[0] == 0
    assert source["url"] == "http://new:9090", "without an address it stays"


def test_a_data_source_that_someone_changes_meanwhile_is_not_overwritten(push: Push, grafana: Grafana) -> None:
    push()
    source = grafana.data_sources["pptoolkit-prometheus"]

    def someone_saves(asked: Asked) -> None:
        if (asked.method, asked.path) == ("GET", "/api/datasources/uid/pptoolkit-prometheus"):
            source.update(url="http://theirs:9090", version=source["version"] + 1)

    grafana.after = someone_saves
    code, said = push("--datasource", "http://ours:9090")
    assert code == 1
    assert "409 'Datasource has already been updated by someone else" in said
    assert source["url"] == "http://theirs:9090"


def test_a_folder_keeps_the_name_that_a_person_gave_it_until_another_is_asked_for(push: Push, grafana: Grafana) -> None:
    push()
    grafana.folders["pptoolkit"].update(title="Training", version=5)
    assert push()[0] == 0
    assert grafana.folders["pptoolkit"]["title"] == "Training"
    code, said = push("--folder", "Models")
    assert (code, grafana.folders["pptoolkit"]["title"], len(grafana.folders)) == (0, "Models", 1), said

    def someone_renames(asked: Asked) -> None:
        if (asked.method, asked.path) == ("GET", "/api/folders/pptoolkit"):
            grafana.folders["pptoolkit"].update(title="Theirs", version=50)

    grafana.after = someone_renames
    code, said = push("--folder", "Ours")
    assert code == 1
    assert "412 'The folder has been changed by someone else'" in said
    assert grafana.folders["pptoolkit"]["title"] == "Theirs"


def test_a_folder_of_that_title_that_is_there_already_is_used(push: Push, grafana: Grafana) -> None:
    grafana.folders["xyz"] = {"id": 50, "uid": "xyz", "title": "Team", "version": 1}
    code, said = push("--folder", "Team")
    assert code == 0, said
    assert list(grafana.folders) == ["xyz"]
    assert {found["folderUid"] for found in grafana.dashboards.values()} == {"xyz"}


def test_start_plan_restart_and_checkpoint_become_annotations_once(push: Push, grafana: Grafana, runs: Path) -> None:
    push()
    found = [(note["time"], note["tags"], note["text"]) for note in grafana.annotations]
    assert [(time, tags[2]) for time, tags, _ in found] == [
        (1_000_500, "event:plan"),
        (1_000_500, "event:start"),
        (1_500_000, "event:checkpoint"),
        (2_000_000, "event:restart"),
    ]
    assert all(tags[:2] == ["pptoolkit", "run:gpt & co"] for _, tags, _ in found)
    assert "applies the plan suggested from run earlier: cuts 2, 4" in found[0][2]
    assert "checkpoint after step 100" in found[2][2]
    assert "run:$run" in BOARDS[RUN]["annotations"]["list"][1]["target"]["tags"], "the boards look for these tags"
    (runs / "gpt & co" / "checkpoints" / "step-00000200" / "COMPLETE").touch()
    code, said = push()
    assert (code, len(grafana.annotations)) == (0, 5), said
    assert "created (1 of 5)" in said


def test_a_damaged_run_keeps_no_other_from_being_annotated(push: Push, grafana: Grafana, runs: Path) -> None:
    (runs / "broken").mkdir()
    (runs / "broken" / "run.json").write_text("{")
    code, said = push()
    assert code == 1
    assert "annotations of broken: kept as it is" in said
    assert len(grafana.annotations) == 4


def test_an_editor_pushes_without_the_data_source(push: Push, grafana: Grafana) -> None:
    grafana.role = "Editor"
    code, said = push()
    assert code == 1
    assert "403" in said
    assert "data sources the role Admin" in said
    code, said = push("--no-datasource")
    assert code == 0, said
    assert not grafana.data_sources


def test_user_and_password_do_as_well_and_nothing_at_all_is_said_before_asking(
    push: Push, grafana: Grafana, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    code, said = push()
    assert (code, grafana.asked) == (2, [])
    assert "set GRAFANA_TOKEN, or GRAFANA_USER and GRAFANA_PASSWORD" in said
    monkeypatch.setenv("GRAFANA_USER", PASSWORD[0])
    monkeypatch.setenv("GRAFANA_PASSWORD", PASSWORD[1])
    assert push()[0] == 0


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Answer.json(401, {"message": "Invalid API key"}), ["401 'Invalid API key'", "is the token (or the password) right"]),
        (Answer.json(403, {"message": "Access denied"}), ["403 'Access denied'", "the role Editor"]),
        (Answer(404, b"<html>nginx 404</html>", "text/html"), ["404 '<html>nginx 404</html>'", "is this the address of Grafana"]),
        (Answer.json(409, {"message": "conflict"}), ["409 'conflict'", "rename one of the two"]),
        (Answer.json(412, {"message": "changed", "status": "version-mismatch"}), ["412 'changed'", "nothing was overwritten"]),
        (Answer.json(500, {"message": "database is locked"}), ["500 'database is locked'", "see Grafana's own log"]),
        (Answer(502, b"a message from the proxy", "text/plain"), ["is not Grafana's API", "check --url"]),
        (Answer(200, b"<html>please log in</html>", "text/html"), ["is not Grafana's API", "check --url"]),
        (Answer(200, b"{}", delay_s=30), ["did not answer within 0.3 s"]),
    ],
    ids=["401", "403", "404", "409", "412", "500", "proxy", "login-page", "hang"],
)
def test_a_refusal_is_one_sentence_with_what_to_do(fault: Answer, expected: list[str], push: Push, grafana: Grafana) -> None:
    grafana.fault = lambda asked: fault
    code, said = push("--timeout", "0.3") if fault.delay_s else push()
    assert code == 1
    assert "Traceback" not in said
    assert said.startswith("error: cannot ")
    for part in expected:
        assert part in " ".join(said.split())
    assert grafana.state == Grafana().state


def test_no_server_is_said_at_once(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert command(["grafana", "push", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert f"there is no server at http://127.0.0.1:{port}; start Grafana, or give its address with --url" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--url", "localhost:3000"], "is no address of Grafana"),
        (["--url", "http://admin:admin@localhost:3000"], "holds a password; leave it out"),
        (["--datasource", "prometheus:9090"], "is no address of Prometheus"),
    ],
)
def test_wrong_addresses_are_refused_before_anything_is_asked(
    options: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)
    assert command(["grafana", "push", *options]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_grafana_below_a_path_is_found(grafana: Grafana, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)

    def below(asked: Asked) -> Answer:
        if not asked.path.startswith("/tools/grafana/"):
            return Answer(404, b"not here", "text/plain")
        return grafana(Asked(asked.method, asked.path.removeprefix("/tools/grafana"), asked.headers, asked.body))

    with served(below) as address:
        assert command(["grafana", "push", "--url", f"{address}/tools/grafana/", "--runs", str(runs)]) == 0
    assert set(grafana.dashboards) == set(BOARDS)


def test_a_run_without_a_parent_or_checkpoints_has_a_start_and_no_more(tmp_path: Path) -> None:
    info = RunInfo(run_id="r", attempts=(Attempt(attempt=0, started_unix_s=1),))
    run = RunDirectory.create(tmp_path / "r", info)
    (run.checkpoints_path / "step-odd").mkdir()
    (run.checkpoints_path / "step-odd" / "COMPLETE").touch()
    assert [event.kind for event in run_events(run)] == ["start"]


def test_the_stand_in_refuses_what_grafana_refuses() -> None:
    server = Grafana()

    def ask(method: str, path: str, body: Any = None) -> Answer:
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
        return server(Asked(method, path, headers, json.dumps(body).encode()))

    assert ask("GET", "/api/nothing").status == 404
    assert ask("POST", "/api/dashboards/db", {"dashboard": {"title": "x"}, "folderUid": "missing"}).status == 400
    assert ask("POST", "/api/dashboards/db", {"dashboard": {"uid": "u", "title": "x"}}).status == 200
    assert json.loads(ask("POST", "/api/dashboards/db", {"dashboard": {"uid": "u", "title": "x"}}).body)["status"] == "version-mismatch"
    assert ask("GET", "/api/annotations?tag=x").status == 400
    assert ask("POST", "/api/annotations", {"time": 1}).status == 400
