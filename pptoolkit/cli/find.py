"""From what a person types to a run directory."""

from pathlib import Path

from pptoolkit.errors import RunError
from pptoolkit.run import Run
from pptoolkit.telemetry import list_runs

RUNS = Path("runs")


def find_run(text: Path | None) -> Run:
    """Open the run at a path, or of that name below ``runs/``; without a name, the latest one.

    Raises:
        RunError: If there is no such run.
    """
    if text is None:
        found = list_runs(RUNS)
        if not found:
            raise RunError(f"there is no run in {RUNS}/; train one first: pptoolkit train examples/gpt.toml --nproc 2")
        return Run.open(max(found, key=lambda run: run.read_info().created_unix_s).path)
    below = RUNS / text
    return Run.open(below if not text.exists() and below.exists() else text)
