"""One thing that makes a run slower, and the words for it. Data only."""

from dataclasses import dataclass

# Cause to what a person reads; kinds of work are told apart by Verdict.kind.
CAUSES = {
    "more_work": "more work",
    "slower_device": "slower device",
    "more_work_or_slower_device": "more work or a slower device",
    "slow_loader": "slow loader",
    "optimizer": "longer optimizer",
    "slow_link": "slow link",
    "host": "slow host",
    "jitter": "jitter",
    "uneven_micro_batches": "uneven micro-batches",
    "pause": "pauses",
    "checkpoint": "checkpoint stall",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of lost time.

    Args:
        cause: A key of :data:`CAUSES`.
        kind: ``"forward"``, ``"backward"``, ``"data"``, ``"optimizer"``, ``"link"``, ``"host"``, ``"jitter"``, ``"pause"`` or
            ``"checkpoint"``.
        stage: Stage that it concerns; None: no single one.
        rank: Global rank that it was seen on; None: no single one, or the same on all replicas.
        link: (source stage, destination stage) of a slow link.
        cost_ratio: Share of the step time that would be gone without it, by replaying the steps without it.
        confidence: How sure it is, in [0, 1]: the share of the steps that show it.
        evidence: One sentence with the numbers behind it.
    """

    cause: str
    kind: str
    stage: int | None
    rank: int | None
    link: tuple[int, int] | None = None
    cost_ratio: float
    confidence: float
    evidence: str

    @property
    def title(self) -> str:
        """What a person reads, e.g. ``"stage 3 has more work"``."""
        if self.link is not None:
            return f"the link from stage {self.link[0]} to stage {self.link[1]} is slow"
        if self.cause in ("more_work", "more_work_or_slower_device"):
            return f"stage {self.stage} has {CAUSES[self.cause]}"
        if self.cause == "slower_device":
            return f"the device of rank {self.rank} (stage {self.stage}) is slow"
        where = f"rank {self.rank}" if self.rank is not None else f"stage {self.stage}" if self.stage is not None else "all ranks"
        return f"{CAUSES[self.cause]} on {where}"

    def to_dict(self) -> dict[str, object]:
        return {
            "cause": self.cause,
            "kind": self.kind,
            "stage": self.stage,
            "rank": self.rank,
            "link": list(self.link) if self.link else None,
            "cost_ratio": self.cost_ratio,
            "confidence": self.confidence,
            "title": self.title,
            "evidence": self.evidence,
        }
