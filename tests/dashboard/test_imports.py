"""What the dashboard needs to be installed."""

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["torch"] = None  # as where it is not installed: importing it fails
import {modules}
assert ("streamlit" in sys.modules) is {streamlit}, "streamlit"
"""


def _import(modules: str, *, streamlit: bool) -> None:
    program = PROGRAM.format(modules=modules, streamlit=streamlit)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_every_page_can_be_imported_where_torch_is_not_installed() -> None:
    views = ("compare", "health", "links", "live_metrics", "rebalance", "runs", "stages", "timeline", "what_if")
    _import(", ".join(f"dashboard.views.{name}" for name in views), streamlit=True)


def test_charts_data_and_launcher_need_no_streamlit() -> None:
    charts = ("curves", "gains", "heat", "intervals", "limits", "numbers", "palette", "ranks", "split", "stacked", "strip")
    others = ("bubble_causes", "bubble_kinds", "catalogue", "data", "health", "history", "launch", "memory", "prometheus")
    others += ("scenario", "simulated", "timeline_message", "wire")
    names = [*(f"charts.{name}" for name in charts), *others]
    # With the command that starts it: ``pptoolkit dashboard`` runs where only the extra of this name is installed.
    _import(", ".join(["pptoolkit.cli.main", "pptoolkit.cli.serve", *(f"dashboard.{name}" for name in names)]), streamlit=False)
