"""Regime changes: a rank whose compute becomes slower or faster in the middle of a run, when, and by how much. Pure arithmetic on series.

A rank's steps are looked at with two windows that follow each other. The later one is short, so that a change is seen soon, and both are
judged by their medians, so that single bad steps are no change:

    reference (up to 60 steps)            recent (9)
    . . . . . . . . . . . . . . . . . . |# # # # # # # # #
                                        change

It is a change when, at three steps in a row, the medians differ by more than :data:`LEAST_CHANGE` and by more than 5 times what the noise
of the reference lets medians of that many steps differ. The place is then the split of both windows with the smallest sum of absolute
deviations.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from pptoolkit.analysis.bubbles import BACKWARD_CODES
from pptoolkit.telemetry.events import Op

LEAST_CHANGE = 0.08
RECENT, REFERENCE, LEAST_REFERENCE = 9, 60, 10
_SIGMAS = 5.0
_MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, for normal noise: sqrt(pi / 2)
_PASSES = {"forward": (int(Op.FORWARD),), "backward": BACKWARD_CODES}

Series = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeChange:
    """A rank's compute changed and stayed changed.

    Args:
        rank: Global rank.
        kind: ``"forward"``, ``"backward"`` or ``"both"``.
        step: First step of the new regime.
        seen_step: Step at which the change was certain: what a watcher would have known when.
        before_s: Median seconds of compute a step before.
        after_s: After.
    """

    rank: int
    kind: str
    step: int
    seen_step: int
    before_s: float
    after_s: float

    @property
    def size_ratio(self) -> float:
        return self.after_s / self.before_s - 1.0

    @property
    def sentence(self) -> str:
        word = "slower" if self.after_s > self.before_s else "faster"
        passes = "forward and backward are" if self.kind == "both" else f"{self.kind} is"
        return (
            f"from step {self.step} on, rank {self.rank}'s {passes} {abs(self.size_ratio):.0%} {word}: "
            f"{self.before_s * 1e3:.1f} ms a step before, {self.after_s * 1e3:.1f} ms after"
        )

    def to_dict(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "kind": self.kind,
            "step": self.step,
            "seen_step": self.seen_step,
            "before_s": self.before_s,
            "after_s": self.after_s,
            "size_ratio": self.size_ratio,
            "sentence": self.sentence,
        }


def find_regime_changes(compute: pd.DataFrame) -> tuple[RegimeChange, ...]:
    """Return the changes of all ranks, in order of time.

    Args:
        compute: Columns rank, step, op, seconds: summed compute by op of each rank and step, of steps that follow each other. Where steps
            were left out (a sampled trace), there is no "middle of a run", and nothing is reported.
    """
    found: list[RegimeChange] = []
    steps = np.sort(compute["step"].unique())
    if len(steps) < RECENT + LEAST_REFERENCE or np.median(np.diff(steps)) > 1:
        return ()
    for rank, rows in compute.groupby("rank", sort=True):
        series = {name: _by_step(rows[rows["op"].isin(codes)], steps) for name, codes in _PASSES.items()}
        whole = sum(series.values(), np.zeros(len(steps)))
        for place, seen in change_points(whole):
            parts = {name: _sizes(values, place) for name, values in series.items()}
            before, after = _sizes(whole, place)
            changed = [name for name, (a, b) in parts.items() if a > 0 and abs(b / a - 1) > LEAST_CHANGE / 2]
            kind = changed[0] if len(changed) == 1 else "both"
            found.append(
                RegimeChange(
                    rank=int(str(rank)), kind=kind, step=int(steps[place]), seen_step=int(steps[seen]), before_s=before, after_s=after
                )
            )
    return tuple(sorted(found, key=lambda change: (change.step, change.rank)))


def change_points(values: Series) -> list[tuple[int, int]]:
    """Return (place of the first new value, place at which it was certain) of each change in a series."""
    found: list[tuple[int, int]] = []
    begin = 0
    while True:
        seen = _first_alarm(values[begin:])
        if seen is None:
            return found
        seen += begin
        low = max(begin, seen - RECENT - REFERENCE + 1)
        place = low + _best_split(values[low : seen + 1])
        found.append((place, seen))
        begin = place


def _first_alarm(values: Series) -> int | None:
    series = pd.Series(values)
    recent = series.rolling(RECENT).median()
    past = series.shift(RECENT).rolling(REFERENCE, min_periods=LEAST_REFERENCE)
    reference, spread = past.median(), (past.quantile(0.75) - past.quantile(0.25)) / 1.349
    count = series.shift(RECENT).rolling(REFERENCE, min_periods=LEAST_REFERENCE).count()
    error = _MEDIAN_ERROR * spread * np.sqrt(1 / RECENT + 1 / count)
    far = ((recent - reference).abs() > np.maximum(LEAST_CHANGE * reference, _SIGMAS * error)).to_numpy()
    # One look can be chance where noise has long tails; three in a row are not.
    alarm = np.zeros_like(far)
    alarm[2:] = far[2:] & far[1:-1] & far[:-2]
    return int(alarm.argmax()) if alarm.any() else None


def _best_split(values: Series) -> int:
    """Return the first place of the later part."""
    places = range(max(1, len(values) - 3 * RECENT), len(values) - RECENT // 2)

    def deviation(place: int) -> float:
        return float(sum(np.abs(part - np.median(part)).sum() for part in (values[:place], values[place:])))

    return min(places, key=deviation)


def _sizes(values: Series, place: int) -> tuple[float, float]:
    before, after = values[max(0, place - REFERENCE) : place], values[place : place + REFERENCE]
    return float(np.median(before)), float(np.median(after))


def _by_step(rows: pd.DataFrame, steps: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> Series:
    # A step that is missing on this rank is no zero: it is like the one before.
    return np.asarray(rows.groupby("step")["seconds"].sum().reindex(steps).ffill().bfill().fillna(0.0), dtype=np.float64)
