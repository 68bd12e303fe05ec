"""The plans that came from a suggestion: what was promised, and what came. Imports no Streamlit."""

import pandas as pd

from dashboard.data import WatchedRun
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
        p, achieved = plan.prediction, run.brief().step_time_s
        if p is None:
            continue
        rows.append(
            {
                "run": run.name,
                "parent": run.info.parent or (plan.origin.run if plan.origin else None),
                "plan": f"{plan.schedule}, cuts {', '.join(map(str, plan.cuts)) or 'none'}",
                "predicted": 1e3 * p.step_time_s,
                "achieved": None if achieved is None else 1e3 * achieved,
                "gain_predicted": 100 * (1 - p.step_time_s / p.baseline_step_time_s),
                "gain_achieved": None if achieved is None else 100 * (1 - achieved / p.baseline_step_time_s),
                "within": None if achieved is None else "yes" if p.low_s <= achieved <= p.high_s else "no",
            }
        )
    return pd.DataFrame(rows)
