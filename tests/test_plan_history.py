import pytest

from pptoolkit.cli.main import run as command
from pptoolkit.errors import PlanError
from pptoolkit.plan import Plan
from pptoolkit.plan_history import PlanHistory


def test_every_plan_is_kept_and_the_one_before_can_be_had_back(tmp_path):
    history = PlanHistory(tmp_path / "plan.toml")
    for cut in (2, 3, 4):
        history.save(Plan(cuts=(cut,)))
    assert [(entry.number, entry.plan.cuts, entry.current) for entry in history.entries()] == [
        (1, (2,), False),
        (2, (3,), False),
        (3, (4,), True),
    ]
    assert history.roll_back().cuts == (3,)
    assert history.roll_back().cuts == (2,)
    assert Plan.load(history.path).cuts == (2,)
    with pytest.raises(PlanError, match="no plan before"):
        history.roll_back()
    assert history.roll_back(3).cuts == (4,)
    with pytest.raises(PlanError, match="there is no plan 9"):
        history.roll_back(9)


def test_a_plan_from_before_the_history_is_its_first_entry(tmp_path):
    Plan(cuts=(1,)).save(tmp_path / "plan.toml")
    history = PlanHistory(tmp_path / "plan.toml")
    assert len(history.entries()) == 1
    history.save(Plan(cuts=(2,)))
    assert [entry.plan.cuts for entry in history.entries()] == [(1,), (2,)]


def test_the_same_plan_twice_is_one_entry(tmp_path):
    history = PlanHistory(tmp_path / "plan.toml")
    history.save(Plan(cuts=(2,)))
    history.save(Plan(cuts=(2,)))
    assert len(history.entries()) == 1


def test_without_any_plan_there_is_no_history(tmp_path):
    assert PlanHistory(tmp_path / "plan.toml").entries() == ()


def test_the_commands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    history = PlanHistory("plan.toml")
    history.save(Plan(cuts=(2,)))
    history.save(Plan(cuts=(3,)))
    assert command(["plans"]) == 0
    assert "* 2" in capsys.readouterr().out
    assert command(["plans", "--back"]) == 0
    assert Plan.load("plan.toml").cuts == (2,)
    assert command(["plans", "--to", "7"]) == 2
    capsys.readouterr()
    assert command(["layout", "balance=[3, 3, 2]", "-o", "new.toml"]) == 0
    assert Plan.load("new.toml").cuts == (3, 6)
    capsys.readouterr()
    assert command(["layout", "new.toml", "--layers", "8", "--to", "megatron"]) == 0
    assert capsys.readouterr().out.strip() == "Ett|t*3|tL"
