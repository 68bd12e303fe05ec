"""Every page, run by Streamlit's own test harness: with data, while it waits, and with what goes wrong."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from dashboard.data import WatchedRun
from pptoolkit.plan import Plan, Prediction
from pptoolkit.telemetry import Op, RunStatus
from pptoolkit.telemetry.json_files import replace_json
from tests.dashboard.synthetic import SyntheticRun, gpt_layers

PAGES = ("runs", "timeline", "stages", "links", "rebalance", "compare", "what_if", "health")
TITLES = {"links": "Links and memory", "what_if": "What-if"}
LIVE_PAGES = ("timeline", "stages", "links", "rebalance")
Open = Callable[..., AppTest]


def _page(name: str) -> None:
    import importlib

    importlib.import_module(f"dashboard.views.{name}").page()


@pytest.fixture
def show(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return a function that opens a page on the folder of runs."""

    def open_page(name: str, **address: str) -> AppTest:
        monkeypatch.setattr(sys, "argv", ["app.py", str(runs)])
        monkeypatch.setattr("dashboard.data.POLL_EVERY_S", 0.0)
        monkeypatch.setattr("dashboard.data._LEAST_PAUSE_S", 0.0)
        monkeypatch.setattr("dashboard.data._SHARE", 0)
        monkeypatch.setattr("dashboard.data._BEATS_SHARE", 0)
        app = AppTest.from_function(_page, args=(name,), default_timeout=20)
        for key, value in address.items():
            app.query_params[key] = value
        return app.run()

    return open_page


def words(app: AppTest) -> str:
    assert not app.exception, [e.value for e in app.exception]
    return "\n".join(str(e.value) for e in [*app.markdown, *app.text, *app.caption, *app.code, *app.success, *app.info])


@pytest.mark.parametrize("page", PAGES)
def test_a_folder_without_runs_is_a_friendly_sentence(show: Open, page: str) -> None:
    assert "There are no runs yet" in words(show(page))


@pytest.mark.parametrize("page", LIVE_PAGES)
def test_a_run_before_its_first_event_is_waited_for_and_then_fills(show: Open, runs: Path, page: str) -> None:
    """D3: no data yet is no error page."""
    run = SyntheticRun(root=runs, run_id="early")
    app = show(page)
    assert "This page fills by itself" in words(app)
    run.train(10)
    assert "fills by itself" not in words(app.run())


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_a_finished_run(show: Open, runs: Path, page: str) -> None:
    first = SyntheticRun(root=runs, run_id="first").train(10).finish()
    SyntheticRun(root=runs, run_id="second", cuts=(4, 7, 9), parent=first.run_id).train(10).finish()
    assert TITLES.get(page, page.capitalize()) in words(show(page, run="second"))


SAVED = {
    "runs": {"runs"},
    "timeline": {"losses", "step times"},
    "stages": {"time by rank", "compute by micro-batch", "compute by step", "layers"},
    "links": {"links", "memory by rank", "memory by micro-batch"},
    "rebalance": {"layers by plan", "step times", "what the steps are made of", "simulated ops", "applied plans"},
    "compare": {"step times", "difference", "losses"},
    "what_if": {"what if", "simulated ops"},
    "health": {"ranks", "clocks"},
}


def saved(app: AppTest) -> set[str]:
    """Return the names of the tables that a page offers as CSV."""
    assert not app.exception
    return {button.proto.label for button in app.get("download_button")}


def test_every_page_offers_what_its_charts_show_as_tables(show: Open, runs: Path) -> None:
    first = SyntheticRun(root=runs, run_id="first").train(10).finish()
    promise = Prediction(step_time_s=0.106, low_s=0.105, high_s=0.108, bubble_ratio=0.3, baseline_step_time_s=0.127)
    SyntheticRun(root=runs, run_id="second", cuts=(4, 7, 9), parent=first.run_id, prediction=promise).train(10).finish()
    assert {page: saved(show(page, run="second")) for page in PAGES} == SAVED


def test_an_appended_step_is_visible_at_the_next_refresh(show: Open, runs: Path) -> None:
    """D4: no cache between the file and the eye."""
    run = SyntheticRun(root=runs, run_id="live").train(5)
    app = show("timeline", run="live")
    assert "**5 of 40**" in words(app)
    run.train(1)
    assert "**6 of 40**" in words(app.run())


def test_the_run_list_says_state_speed_and_gain(show: Open, runs: Path) -> None:
    first = SyntheticRun(root=runs, run_id="first").train(10).finish()
    SyntheticRun(root=runs, run_id="second", cuts=(3, 6, 9), parent=first.run_id, steps_asked=20).train(10)
    table = show("runs").dataframe[0].value.set_index("run")
    assert table.loc["first", "state"] == ["finished"]
    assert table.loc["second", "state"] == ["running"]
    assert table.loc["second", "progress"] == 50
    assert table.loc["second", "gain"] == pytest.approx(100 * (1 - table.loc["second", "step_ms"] / table.loc["first", "step_ms"]))
    assert table.loc["second", "gain"] > 10


def test_an_unreadable_run_is_named_beside_the_readable_ones(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="good").train(6)
    (runs / "bad").mkdir()
    (runs / "bad" / "run.json").write_text("{ torn")
    (runs / "later").mkdir()
    (runs / "later" / "run.json").write_text('{"schema": 99, "run_id": "later"}')
    app = show("runs")
    text = words(app)
    assert "not readable JSON" in text
    assert "schema 99" in text
    assert len(app.dataframe[0].value) == 1


def test_a_rank_that_sent_nothing_is_named(show: Open, runs: Path) -> None:
    run = SyntheticRun(root=runs, run_id="missing").train(6)
    for path in (run.directory.path / "events").glob("rank-00002*"):
        path.unlink()
    text = words(show("timeline"))
    assert "These ranks have sent nothing yet" in text
    assert "\n2\n" in f"{text}\n"


def test_a_failed_run_says_why(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="dead").train(6).finish(RunStatus.FAILED, "rank 3 was killed by signal 9")
    assert "rank 3 was killed by signal 9" in words(show("timeline"))


def test_the_stage_that_sets_the_pace_is_marked_with_its_evidence(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="uneven").train(12).finish()
    app = show("stages")
    assert "Rank 3 works" in words(app)
    table = app.dataframe[0].value
    assert table["verdict"].tolist() == ["", "", "", "bottleneck"]


def test_apply_writes_the_suggested_plan_and_shows_the_command(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="uneven").train(12).finish()
    app = show("rebalance")
    app.button(key="apply-Apply to next run").click().run()
    target = runs / "uneven" / "next-plan.toml"
    plan = Plan.load(target)
    assert plan.cuts[-1] == 9
    assert plan.prediction is not None
    assert f"pptoolkit train examples/gpt.toml --plan {target}" in words(app)


def test_a_run_that_was_cut_anew_lists_when_from_what_to_what_and_what_came(show: Open, runs: Path) -> None:
    promise = Prediction(step_time_s=0.1064, low_s=0.100, high_s=0.112, bubble_ratio=0.28, baseline_step_time_s=0.1271)
    run = SyntheticRun(root=runs, run_id="recut").train(10)
    assert "Cut anew while it trained" not in words(show("rebalance"))
    run.recut((4, 7, 9), promise).train(10).finish()
    app = show("rebalance")
    text = words(app)
    assert "Cut anew before step 10: cuts [3, 6, 8] -> [4, 7, 9], predicted 106.4 ms a step" in text
    assert "inside its interval" in text
    (row,) = app.dataframe[0].value.to_dict("records")
    assert (row["step"], row["before"], row["after"], row["within"]) == (10, "3, 6, 8", "4, 7, 9", "yes")
    assert "re-cuts" in saved(app)
    assert "**4, 7, 9 since step 10**" in words(show("timeline"))
    assert show("runs").dataframe[0].value["predicted"].isna().all()


def test_a_balanced_run_is_told_to_stay_as_it_is(show: Open, runs: Path) -> None:
    layers = gpt_layers(8)[1:9]
    SyntheticRun(root=runs, run_id="even", layers=layers).train(12).finish()
    app = show("rebalance")
    assert "no change: the cuts are good as they are" in words(app)
    assert not app.button


def test_cuts_of_ones_own_are_predicted_and_can_be_applied(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="uneven").train(12).finish()
    app = show("rebalance")
    app.text_input(key="cuts-uneven").set_value("[2, 5, 9]").run()
    app.button(key="apply-Apply your own").click().run()
    assert Plan.load(runs / "uneven" / "next-plan.toml").cuts == (2, 5, 9)


@pytest.mark.parametrize(
    ("typed", "answer"), [("3, x", "'x' is no whole number"), ("9, 3, 5", "does not come after"), ("3, 6, 99", "out of range")]
)
def test_cuts_that_do_not_work_are_explained(show: Open, runs: Path, typed: str, answer: str) -> None:
    SyntheticRun(root=runs, run_id="uneven").train(12).finish()
    app = show("rebalance")
    assert answer in words(app.text_input(key="cuts-uneven").set_value(typed).run())


def test_a_run_directory_that_cannot_be_written_is_no_traceback(show: Open, runs: Path) -> None:
    SyntheticRun(root=runs, run_id="uneven").train(12).finish()
    app = show("rebalance")
    (runs / "uneven" / "next-plan.toml").mkdir()
    assert "The plan was not written" in words(app.button(key="apply-Apply to next run").click().run())


def test_two_identical_runs_can_be_compared_on_one_page(show: Open, runs: Path) -> None:
    """D9: no element twice under one identity."""
    for name in ("twin-a", "twin-b"):
        SyntheticRun(root=runs, run_id=name).train(10).finish()
    text = words(show("compare"))
    assert "equal, digit by digit" in text
    assert "no difference beyond the noise" in text


def test_predicted_stands_beside_achieved(show: Open, runs: Path) -> None:
    first = SyntheticRun(root=runs, run_id="first").train(12).finish()
    app = show("rebalance")
    app.button(key="apply-Apply to next run").click().run()
    plan = Plan.load(runs / "first" / "next-plan.toml")
    SyntheticRun(root=runs, run_id="second", cuts=plan.cuts, parent=first.run_id, prediction=plan.prediction).train(12).finish()
    text = words(show("compare", run="second"))
    assert "predicted gain" in text
    assert "inside its interval" in text


def test_a_deep_link_opens_its_run_and_step_and_an_unknown_run_falls_back_with_a_word(show: Open, runs: Path) -> None:
    for name in ("a", "b"):
        SyntheticRun(root=runs, run_id=name).train(8)
    app = show("timeline", run="a", step="3")
    assert app.selectbox[0].value == "a"
    assert app.number_input(key="step").value == 3
    assert app.query_params["step"] in ("3", ["3"])
    assert "no readable run of this name" in words(show("timeline", run="gone"))


def test_choosing_another_run_shows_it_and_forgets_the_step_of_the_old_one(show: Open, runs: Path) -> None:
    for name, steps in (("a", 8), ("b", 5)):
        SyntheticRun(root=runs, run_id=name).train(steps)
    app = show("timeline", run="a", step="3")
    app.selectbox[0].set_value("b").run()
    assert "**5 of 40**" in words(app)
    assert app.selectbox[0].value == "b"
    assert app.number_input(key="step").value is None
    assert "step" not in app.query_params


@pytest.mark.parametrize("page", PAGES)
def test_names_from_files_are_never_markup(show: Open, runs: Path, page: str) -> None:
    name = "**bold** [link](http:x) $x$ :red[a] <b>"
    layers = tuple(
        type(layer)(name=f"<i>*{layer.name}*</i>", forward_s=layer.forward_s, backward_s=layer.backward_s) for layer in gpt_layers()
    )
    SyntheticRun(root=runs, run_id="first", layers=layers).train(10).finish()
    SyntheticRun(root=runs, run_id=name.replace("/", ""), layers=layers).train(10).finish(RunStatus.FAILED, "*no* <b>markup</b>")
    app = show(page, run=name.replace("/", ""))
    assert not app.exception
    for element in [*app.markdown, *app.caption, *app.success]:
        assert "bold" not in element.value
        assert "<i>" not in element.value
        assert "<b>" not in element.value


def test_a_damaged_event_file_still_opens_and_what_was_skipped_is_counted(show: Open, runs: Path) -> None:
    """D1: a cut last batch, NULs and bytes that are no text cost only themselves."""
    run = SyntheticRun(root=runs, run_id="damaged").train(6).train(6).finish()
    events = run.directory.path / "events"
    (torn,) = events.glob("rank-00001*")
    torn.write_bytes(torn.read_bytes()[:-40])
    (garbled,) = events.glob("rank-00002*")
    garbled.write_bytes(garbled.read_bytes() + b"\0" * 500 + b"\xff\xfe not an event \x80")
    text = words(show("timeline"))
    assert "unreadable" in text
    assert "**12 of 40**" in text or "**6 of 40**" in text
    assert "event files could not be read" in words(show("health"))


def test_what_is_missing_of_the_telemetry_is_a_badge_and_a_picture(show: Open, runs: Path) -> None:
    run = SyntheticRun(root=runs, run_id="lossy").train(6)
    path = run.directory.heartbeat_path(2)
    replace_json(path, {**json.loads(path.read_text()), "dropped": 12})
    assert "12 events dropped" in words(show("timeline"))
    app = show("health")
    assert "12 events were dropped on rank 2" in words(app)
    assert "nothing is missing" not in words(app)


def test_what_is_usual_is_learned_from_the_steps_behind_the_statistics(runs: Path) -> None:
    run = SyntheticRun(root=runs, run_id="causes").train(8).finish()
    watched = WatchedRun(run.directory.path)
    watched.refresh()
    watched.learn_usual_times()
    scene = watched.scene(newest=3)
    assert scene is not None
    assert set(scene.finder.usual_s) == {(int(op), stage) for op in (Op.FORWARD, Op.BACKWARD) for stage in range(4)}
