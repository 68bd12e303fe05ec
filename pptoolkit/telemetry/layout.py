"""Where a rank stands in its run: its stages, and the links over which tensors reach it."""

from dataclasses import dataclass

from pptoolkit.telemetry.run_info import RunInfo


@dataclass(frozen=True, slots=True)
class Link:
    """One direction between two neighbouring stages: activations flow up, gradients flow down."""

    src_stage: int
    dst_stage: int

    @property
    def kind(self) -> str:
        return "activation" if self.dst_stage > self.src_stage else "gradient"

    @property
    def labels(self) -> tuple[str, str, str]:
        return str(self.src_stage), str(self.dst_stage), self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RankLayout:
    """What telemetry has to know about a rank before the first step.

    Args:
        rank: Global rank.
        replica: Data-parallel copy that the rank belongs to.
        stage_to_rank: Pipeline rank (within the replica) of each stage; global rank = replica * pipeline ranks + pipeline rank.
        ranks: Processes over all replicas.
        micro_batches: Micro-batches per step.
        schedule: The schedule's name.
        schedule_bubble_ratio: What the schedule alone leaves idle, in [0, 1].
        plan: What tells this plan from others, e.g. ``"cuts=4,8"``.
    """

    rank: int
    replica: int = 0
    stage_to_rank: tuple[int, ...] = (0,)
    ranks: int = 1
    micro_batches: int = 1
    schedule: str = ""
    schedule_bubble_ratio: float = 0.0
    plan: str = ""

    @classmethod
    def from_info(cls, info: RunInfo, rank: int) -> "RankLayout":
        """Return the layout of global rank ``rank`` in a run."""
        pipeline_ranks = max(1, info.ranks // max(1, info.replicas))
        cuts = ",".join(str(cut) for cut in info.plan.get("cuts", ()))
        return cls(
            rank=rank,
            replica=rank // pipeline_ranks,
            stage_to_rank=info.stage_to_rank,
            ranks=info.ranks,
            micro_batches=info.micro_batches,
            schedule=info.schedule,
            schedule_bubble_ratio=info.schedule_bubble_ratio,
            plan=f"cuts={cuts}" if cuts else "",
        )

    @property
    def pipeline_ranks(self) -> int:
        return max(self.stage_to_rank, default=0) + 1

    @property
    def stages(self) -> tuple[int, ...]:
        """Stages that this rank owns."""
        own = self.rank - self.replica * self.pipeline_ranks
        return tuple(stage for stage, rank in enumerate(self.stage_to_rank) if rank == own)

    @property
    def incoming(self) -> tuple[Link, ...]:
        """Links that end on this rank and begin on another."""
        return tuple(Link(src, dst) for dst in self.stages for src in (dst - 1, dst + 1) if self._elsewhere(src))

    def rank_of(self, stage: int) -> int:
        """Global rank of ``stage`` in this rank's replica."""
        return self.replica * self.pipeline_ranks + self.stage_to_rank[stage]

    def _elsewhere(self, stage: int) -> bool:
        return 0 <= stage < len(self.stage_to_rank) and stage not in self.stages
