"""The plans that came from a suggestion: what was promised, and what came. Imports no Streamlit."""

import pandas as pd

from dashboard.charts.intervals import StepTime
from dashboard.data import WatchedRun
from pptoolkit.analysis.segments import segments_of
from pptoolkit.errors import PPToolkitError


def history_rows(runs: list[WatchedRun]) -> pd.DataFrame:
    """Return one row per run whose plan made a prediction, the newest first."""
    rows = []
    for run in runs:
        try:
            run.refresh()
            plan = run.info.read_plan()
        except PPToolkitError:
            continue
        recut = len(segments_of(run.info)) > 1
        p, achieved = plan.prediction, run.brief().step_time_s
        if p is None:
            continue
        rows.append(
            {
                "run": run.name,
                "parent": "itself, while it trained" if recut else run.info.parent or (plan.origin.run if plan.origin else None),
                "plan": f"{plan.schedule}, cuts {', '.join(map(str, plan.cuts)) or 'none'}",
                "predicted": 1e3 * p.step_time_s,
                "low": 1e3 * p.low_s,
                "high": 1e3 * p.high_s,
                "achieved": None if achieved is None else 1e3 * achieved,
                "gain_predicted": 100 * (1 - p.step_time_s / p.baseline_step_time_s),
                "gain_achieved": None if achieved is None else 100 * (1 - achieved / p.baseline_step_time_s),
                "within": None if achieved is None else "yes" if p.low_s <= achieved <= p.high_s else "no",
            }
        )
    return pd.DataFrame(rows)


def history_times(rows: pd.DataFrame) -> list[StepTime]:
    """Return for each applied plan the promise, with its interval, and below it what came."""
    times = []
    for row in rows.to_dict("records"):
        promised, low, high = (row[name] / 1e3 for name in ("predicted", "low", "high"))
        times.append(StepTime(label=f"{row['run']}, promised", kind="predicted", seconds=promised, low_s=low, high_s=high))
        if row["achieved"] == row["achieved"] and row["achieved"] is not None:
            achieved = row["achieved"] / 1e3
            times.append(StepTime(label=f"{row['run']}, achieved", kind="measured", seconds=achieved, low_s=achieved, high_s=achieved))
    return times
