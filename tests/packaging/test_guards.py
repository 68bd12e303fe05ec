"""The guards of tests/conftest.py find what a test leaves behind, put it right, and stay silent otherwise."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.packaging.checkout import ROOT

LEAKS = {
    "import os; os.environ['PPTOOLKIT_LEFT'] = '1'": "environment variable PPTOOLKIT_LEFT (None became '1')",
    "import threading, time; threading.Thread(target=time.sleep, args=(4,), name='sleepy').start()": "thread 'sleepy'",
    "import subprocess; subprocess.Popen(['sleep', '50'])": "sleep 50",
    "import torch.distributed as d; d.init_process_group('gloo', store=d.HashStore(), rank=0, world_size=1)": "initialised process group",
}
KEPT = """
    import subprocess
    from tests.support.ranks import KEPT_RANKS
    KEPT_RANKS.add(subprocess.Popen(['sleep', '4']).pid)
"""
AFTERWARDS = """
    import os, sys, psutil
    assert "PPTOOLKIT_LEFT" not in os.environ
    assert not psutil.Process().children()
    distributed = sys.modules.get("torch.distributed")
    assert distributed is None or not distributed.is_initialized()
"""


def run_guarded(folder: Path, *bodies: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder)
    (folder / "test_it.py").write_text("".join(f"def test_{i}():\n    {body}\n" for i, body in enumerate(bodies)))
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)


def test_what_a_test_leaves_behind_is_told_and_put_right(tmp_path: Path) -> None:
    done = run_guarded(tmp_path, *LEAKS, AFTERWARDS.strip())
    told = [line for line in done.stdout.splitlines() if line.startswith("the test left behind: ")]
    assert len(told) == len(LEAKS)
    assert [expected for line, expected in zip(told, LEAKS.values(), strict=True) if expected not in line] == []
    assert f"{len(LEAKS) + 1} passed, {len(LEAKS)} errors" in done.stdout


def test_a_clean_test_passes(tmp_path: Path) -> None:
    body = "import os, subprocess, threading; subprocess.run(['true']); t = threading.Thread(target=print); t.start(); t.join()"
    done = run_guarded(tmp_path, body)
    assert "1 passed" in done.stdout
    assert done.returncode == 0


def test_ranks_that_the_session_keeps_are_no_leak(tmp_path: Path) -> None:
    assert "1 passed" in run_guarded(tmp_path, KEPT.strip()).stdout
