"""Where torch is not installed a run can still be read, planned and shown."""

import subprocess
import sys
from pathlib import Path

import pytest

PREAMBLE = """
import importlib, pkgutil, sys
for name in ("torch", "tokenizers", "transformers"):
    sys.modules[name] = None  # so that an import of it raises ImportError
"""


def run_without_torch(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PREAMBLE + code], cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize("module", ["pptoolkit.run", "pptoolkit.simulator", "pptoolkit.cli.main"])
def test_it_imports(module: str, tmp_path: Path) -> None:
    done = run_without_torch(f"importlib.import_module({module!r})", tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_module_of_the_dashboard_imports(tmp_path: Path) -> None:
    code = """
import dashboard
# app.py is a script: it runs when it is imported.
names = [m.name for m in pkgutil.walk_packages(dashboard.__path__, "dashboard.") if m.name != "dashboard.app"]
for name in names:
    importlib.import_module(name)
print(len(names))
"""
    done = run_without_torch(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 10


def test_importing_the_package_does_not_import_torch_where_there_is_one(tmp_path: Path) -> None:
    code = "import sys, pptoolkit, pptoolkit.cli.main; print(sorted({'torch', 'streamlit'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr
