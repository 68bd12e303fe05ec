"""The wheel carries all that the checkout's code reads at run time, and works where there is no checkout."""

import os
import subprocess
import sys
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=os.environ | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", folder, ".", cwd=ROOT)
    (built,) = folder.glob("pptoolkit-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", folder, wheel, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def files_below(folder: str) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    expected = files_below("pptoolkit") | files_below("dashboard") | files_below("grafana")
    expected |= {f"pptoolkit/{path}" for path in files_below("examples")}
    assert {"dashboard/components/gantt/main.js", "pptoolkit/examples/gpt.toml"} <= expected
    assert expected - inside == set()


def test_the_wheel_has_nothing_but_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} <= {"pptoolkit", "dashboard", "grafana"}


def test_the_wheel_carries_its_licence_and_extras(wheel: Path, metadata: Message) -> None:
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or ()) == {"train", "dashboard", "grafana", "hf", "dev"}
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/LICENSE"))
        assert "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION" in archive.read(name).decode()


def test_reading_a_run_asks_for_neither_torch_nor_streamlit(metadata: Message) -> None:
    always = [requirement for requirement in metadata.get_all("Requires-Dist") or () if "extra ==" not in requirement]
    assert always
    assert not [requirement for requirement in always if requirement.startswith(("torch", "streamlit", "altair", "tokenizers"))]


def test_the_installed_command_runs_outside_the_checkout(installed: Path, tmp_path: Path) -> None:
    shown = run(sys.executable, installed / "bin" / "pptoolkit", "--help", cwd=tmp_path, PYTHONPATH=str(installed))
    for command in ("train", "report", "suggest", "apply", "compare", "dashboard", "demo"):
        assert f"  {command} " in shown


def test_the_installed_packages_are_the_wheels_own(installed: Path, tmp_path: Path) -> None:
    code = "import dashboard, pptoolkit.run; print(dashboard.__file__); print(pptoolkit.run.__file__)"
    found = run(sys.executable, "-c", code, cwd=tmp_path, PYTHONPATH=str(installed)).split("\n")
    assert found[:2] == [str(installed / "dashboard" / "__init__.py"), str(installed / "pptoolkit" / "run.py")]
