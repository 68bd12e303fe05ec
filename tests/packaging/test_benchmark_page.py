"""`make bench` finds the benchmarks and writes what they say, goals that were missed included."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks import __main__ as bench
from benchmarks.report import Result

GOOD = Result(name="step ratio", value=1.01234, low=1.0, high=1.02, unit="", goal="upper bound <= 1.05", holds=True)
BAD = Result(name="overhead", value=0.02, low=0.015, high=0.025, unit="of the step", goal="upper bound <= 0.01", holds=False)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(bench, "FOLDER", tmp_path / "benchmarks")
    monkeypatch.setattr(bench, "PAGE", tmp_path / "docs" / "benchmarks.md")
    (tmp_path / "benchmarks" / "__init__.py").write_text("")
    (tmp_path / "benchmarks" / "shared.py").write_text("X = 1\n")
    write_script(tmp_path, "one", "[]")
    return tmp_path


def write_script(folder: Path, name: str, output: str) -> None:
    (folder / "benchmarks" / f"{name}.py").write_text(f"# has an argument_parser()\nprint('{output}')\n")


def test_a_module_without_the_options_is_no_benchmark(folder: Path) -> None:
    assert bench.scripts() == ["one"]


def test_a_section_shows_values_intervals_and_missed_goals() -> None:
    text = bench.section("step", [GOOD, BAD], taken_s=12.4)
    assert "| step ratio | 1.012 | 1 to 1.02 |  | upper bound <= 1.05 | yes |" in text
    assert "| overhead | 0.02 | 0.015 to 0.025 | of the step | upper bound <= 0.01 | **no** |" in text


def test_the_page_names_the_machine_and_torch(folder: Path) -> None:
    write_script(folder, "one", json.dumps([asdict(Result(name="a", value=1.0, low=1.0, high=1.0, unit="s"))]))
    assert bench.main([]) == 0
    text = (folder / "docs" / "benchmarks.md").read_text()
    assert "cores" in text
    assert "torch" in text
    assert "| a | 1 | 1 to 1 | s |  |  |" in text


@pytest.mark.parametrize("arguments", [["--quick"], ["one"]])
def test_a_part_of_the_benchmarks_is_not_written_as_the_whole(folder: Path, arguments: list[str]) -> None:
    assert bench.main(arguments) == 0
    assert not (folder / "docs" / "benchmarks.md").exists()


def test_a_benchmark_that_fails_is_named_and_the_others_run(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_script(folder, "broken", "no json")
    assert bench.main([]) == 1
    captured = capfd.readouterr()
    assert "not as promised: broken: no results, see above" in captured.err
    assert "## one" in captured.out
    assert not (folder / "docs" / "benchmarks.md").exists()


def test_a_missed_goal_is_written_and_told(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_script(folder, "one", json.dumps([asdict(BAD)]))
    assert bench.main([]) == 1
    assert "not as promised: one: overhead" in capfd.readouterr().err
    assert "**no**" in (folder / "docs" / "benchmarks.md").read_text()


def test_an_unknown_name_is_refused_with_the_known_ones(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        bench.main(["two"])
    assert leaving.value.code == 2
    assert "there are: one" in capsys.readouterr().err
