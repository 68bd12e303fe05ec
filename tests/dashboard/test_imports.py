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
    _import("dashboard.views." + ", dashboard.views.".join(("compare", "rebalance", "runs", "stages", "timeline")), streamlit=True)


def test_charts_data_and_launcher_need_no_streamlit() -> None:
    charts = ", ".join(f"dashboard.charts.{name}" for name in ("curves", "heat", "intervals", "numbers", "palette", "split", "strip"))
    _import(f"dashboard.data, dashboard.timeline_message, dashboard.wire, dashboard.launch, {charts}", streamlit=False)
