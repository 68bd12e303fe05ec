"""A run in a few numbers, cheap enough for every refresh and for a whole list of runs.

The numbers equal the report's: the same usable steps, the same medians. What the report adds (stages, links, verdict) is left out.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from pptoolkit.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """What is known so far; None where nothing is yet.

    Args:
        steps_done: Steps that every rank has finished.
        step_time_s: Median over the usable steps.
        bubble_ratio: 1 - compute of all ranks / (ranks * step time); median over the usable steps.
        samples_per_s: Samples of all replicas per second.
    """

    steps_done: int
    loss: float | None
    step_time_s: float | None
    bubble_ratio: float | None
    samples_per_s: float | None


def build_brief(run: Run, losses: pd.DataFrame) -> Brief:
    """Return the brief of what was read so far.

    Args:
        run: The run.
        losses: Step and loss, in order.
    """
    steps, usable, scalars = run.steps(), run.usable_steps(), run.scalars()
    bubbles = run.bubble_ratios(usable)
    step_time_s = float(usable["step_time_s"].median()) if len(usable) else None
    newest = scalars[scalars["step"] >= usable["step"].min()] if len(usable) else scalars.iloc[:0]
    counted = newest.loc[newest["step"].isin(usable["step"]) & (newest["samples"] > 0)].groupby("step")["samples"].sum()
    return Brief(
        steps_done=int(np.unique(steps["step"].to_numpy()[steps["complete"].to_numpy()]).size),
        loss=float(losses["loss"].iloc[-1]) if len(losses) else None,
        step_time_s=step_time_s,
        bubble_ratio=float(np.median(bubbles)) if len(bubbles) else None,
        samples_per_s=float(counted.median()) / step_time_s if step_time_s and len(counted) else None,
    )
