"""Where the wall time of the usable steps went, per rank: means, because means of disjoint parts sum to the mean of the whole."""

from dataclasses import dataclass

from pptoolkit.analysis.steps import SteadySteps
from pptoolkit.telemetry.accounting import STATES, split_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """One rank's mean step: ``states`` (state to seconds) sum to ``wall_s``."""

    rank: int
    wall_s: float
    states: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        return {"rank": self.rank, "wall_s": self.wall_s, "states": dict(self.states)}


def account(steady: SteadySteps) -> tuple[RankAccount, ...]:
    """Return the mean accounting of each rank over the usable steps, by rank."""
    if not steady.count:
        return ()
    parts = split_steps(steady.events)
    means = parts.groupby("rank")[["wall_ns", *(f"{state}_ns" for state in STATES)]].mean() / 1e9
    return tuple(
        RankAccount(rank=int(rank), wall_s=float(row[0]), states={str(state): float(ns) for state, ns in zip(STATES, row[1:], strict=True)})
        for rank, row in zip(means.index, means.to_numpy(), strict=True)
    )


def pipeline_account(accounts: tuple[RankAccount, ...]) -> dict[str, float]:
    """Return seconds per state, averaged over the ranks."""
    return {str(state): sum(rank.states[str(state)] for rank in accounts) / len(accounts) for state in STATES} if accounts else {}
