"""What `make` says and does on machines that are not ready, and that it does not do twice what is done."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.packaging.checkout import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")

# Stands for a Python with venv and pip: notes how it was called, and makes a .venv whose Python is itself.
FAKE_PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >> calls
case "$*" in
  *sys.version_info*3,*11*) exit ${TOO_OLD:-0} ;;
  --version) echo "Python 3.9.2" ;;
  *ensurepip*) exit ${NO_VENV:-0} ;;
  *version_info*) echo python3.11-venv ;;
  "-m pip --version") test -d .venv/bin ;;
  "-m pip install"*) exit ${NO_NETWORK:-0} ;;
  "-m venv"*)
    rm -rf .venv
    mkdir -p .venv/bin
    cp "$0" .venv/bin/python
    printf '#!/bin/sh\\necho the demo ran\\n' > .venv/bin/pptoolkit
    chmod +x .venv/bin/* ;;
  "-m ruff check ." | "-m mypy") echo "$* found something"; exit 1 ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose path has spaces."""
    folder = tmp_path / "a check out"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    (folder / "fake python").write_text(FAKE_PYTHON)
    (folder / "fake python").chmod(0o755)
    return folder


def make(folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "calls").write_text("")
    # A make that runs this test hands its own flags down in variables.
    inherited = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "PYTHON")}
    command = ["make", f"PYTHON={folder / 'fake python'}", *arguments]
    return subprocess.run(
        command, cwd=folder, env=inherited | variables, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )


def calls(folder: Path, of: str) -> list[str]:
    return [line for line in (folder / "calls").read_text().splitlines() if of in line]


def test_the_first_demo_installs_from_the_constraints_and_runs(checkout: Path) -> None:
    done = make(checkout, "demo")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("the demo ran\n")
    installs = calls(checkout, "-m pip install")
    assert len(installs) == 2
    assert all("-c constraints.txt" in line for line in installs)
    assert installs[1].endswith("-e .[train,dashboard]")


def test_the_second_demo_installs_nothing(checkout: Path) -> None:
    make(checkout, "demo")
    done = make(checkout, "demo")
    assert done.stdout == "the demo ran\n"
    assert calls(checkout, "pip") == calls(checkout, "venv") == []


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_a_changed_list_of_packages_is_installed_again(checkout: Path, changed: str) -> None:
    make(checkout, "demo")
    newer = (checkout / ".venv" / "installed-demo").stat().st_mtime + 10
    os.utime(checkout / changed, (newer, newer))
    make(checkout, "demo")
    assert calls(checkout, "-e .[train,dashboard]")
    assert not calls(checkout, "-m venv")


def test_the_environment_of_the_tests_serves_the_demo_too(checkout: Path) -> None:
    make(checkout, "test")
    assert calls(checkout, "-e .[train,dashboard,grafana,dev]")
    assert make(checkout, "demo").stdout == "the demo ran\n"


def test_a_moved_checkout_is_installed_again(checkout: Path) -> None:
    make(checkout, "demo")
    moved = checkout.rename(checkout.with_name("elsewhere"))
    make(moved, "demo")
    assert calls(moved, "-e .[train,dashboard]")


def test_an_installation_that_failed_is_tried_again(checkout: Path) -> None:
    failed = make(checkout, "demo", NO_NETWORK="1")
    assert failed.returncode != 0
    assert "the demo ran" not in failed.stdout
    assert make(checkout, "demo").stdout.endswith("the demo ran\n")


def test_an_environment_whose_python_is_gone_is_made_again(checkout: Path) -> None:
    make(checkout, "demo")
    python = checkout / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/no/such/python")
    python.with_name("pptoolkit").unlink()
    assert make(checkout, "demo").stdout.endswith("the demo ran\n")


def test_an_old_python_is_refused_with_the_remedy(checkout: Path) -> None:
    done = make(checkout, "demo", TOO_OLD="1")
    assert done.returncode != 0
    assert "is Python 3.9.2, and pptoolkit needs 3.11 or newer" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_python_without_venv_is_refused_with_the_packages_name(checkout: Path) -> None:
    done = make(checkout, "demo", NO_VENV="1")
    assert done.returncode != 0
    assert "apt install python3.11-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_no_python_at_all_is_said(checkout: Path) -> None:
    done = make(checkout, "PYTHON=no-such-python", "demo")
    assert done.returncode != 0
    assert "There is no 'no-such-python' here" in done.stderr


def test_all_checks_run_and_the_failed_ones_are_named(checkout: Path) -> None:
    done = make(checkout, "test")
    assert done.returncode != 0
    assert "FAILED: [ruff check] [mypy]\n" in done.stdout
    assert calls(checkout, "-m pytest")


def test_help_lists_every_target_that_a_person_calls(checkout: Path) -> None:
    shown = make(checkout, "help").stdout
    assert [line.split()[1] for line in shown.splitlines()] == [
        "help",
        "demo",
        "test",
        "test-slow",
        "test-gpu",
        "lint",
        "format",
        "bench",
        "clean",
    ]
