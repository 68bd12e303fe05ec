"""What run.json says about a run: what was asked, what runs, and how it went.

Reading is tolerant: unknown keys are kept and written back, so an older release can update the file of a newer one.
"""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from pptoolkit.plan import Plan

RUN_SCHEMA_VERSION = 1


class RunStatus(StrEnum):
    """How a run or an attempt stands; written by the launcher. A run that stopped telling is judged by its heartbeats."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def ended(self) -> bool:
        return self in (RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED)


class _Record(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, populate_by_name=True, ser_json_inf_nan="strings")


class Attempt(_Record):
    """One start of the run's processes."""

    attempt: int
    started_unix_s: float
    ended_unix_s: float | None = None
    status: RunStatus = RunStatus.RUNNING
    message: str = ""
    failed_rank: int | None = None


class LayerFacts(_Record):
    """What is known of a layer without timing it. ``boundary_bytes``: what crosses a cut right after it, per micro-batch."""

    name: str
    parameters: int = 0
    parameter_bytes: int = 0
    activation_bytes: int = 0
    boundary_bytes: int = 0


class Endpoint(_Record):
    """Where one rank's metrics are."""

    rank: int
    url: str
    replica: int = 0
    host: str = ""


class RunInfo(_Record):
    """The body of run.json.

    Args:
        stage_to_rank: Pipeline rank (within one replica) of each stage.
        ranks: Processes over all replicas.
        micro_batches: Micro-batches of one pass through the schedule.
        accumulation: Passes through the schedule per step; a step's events count their micro-batches on from pass to pass.
        schedule_bubble_ratio: What the schedule alone leaves idle with equal stages, in [0, 1].
        parent: The run whose suggestion this run applies.
        device: Kind of device on which all ranks compute: ``"cpu"`` or ``"cuda"``; "" where nobody knows, as of a foreign trace.
        gpus: UUID of each rank's GPU; empty on the CPU.
        blocking_links: Both ends of a message wait for each other, as in a rendezvous, instead of the receiver alone.
    """

    schema_version: int = Field(default=RUN_SCHEMA_VERSION, alias="schema")
    run_id: str
    name: str = ""
    status: RunStatus = RunStatus.WAITING
    message: str = ""
    created_unix_s: float = 0.0
    updated_unix_s: float = 0.0
    attempts: tuple[Attempt, ...] = ()
    command: tuple[str, ...] = ()
    seed: int = 0
    config: dict[str, Any] = Field(default_factory=dict)
    layers: tuple[str, ...] = ()
    layer_facts: tuple[LayerFacts, ...] = ()
    fingerprint: str = ""
    plan: dict[str, Any] = Field(default_factory=dict)
    stage_to_rank: tuple[int, ...] = (0,)
    ranks: int = 1
    replicas: int = 1
    schedule: str = ""
    micro_batches: int = 1
    accumulation: int = 1
    schedule_bubble_ratio: float = 0.0
    steps: int = 0
    batch_size: int = 0
    tokens_per_sample: int = 0
    parent: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    device: str = "cpu"
    gpus: tuple[str, ...] = ()
    blocking_links: bool = False

    @property
    def stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def is_foreign(self) -> bool:
        """Whether the run was imported from another trainer's trace."""
        return "import" in self.config

    def runs_same_model(self, other: "RunInfo") -> bool:
        """Whether both runs have the same layers, by fingerprint where both have one, else by name."""
        if self.fingerprint and other.fingerprint:
            return self.fingerprint == other.fingerprint
        return self.layers == other.layers

    def read_plan(self) -> Plan:
        """Return the plan that the run executes.

        Raises:
            PlanError: If run.json holds no readable plan.
        """
        return Plan.from_dict(self.plan, where=f"run.json of {self.run_id}")

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    def evolve(self, **changes: Any) -> "RunInfo":
        """Return a checked copy with ``changes``."""
        return RunInfo.model_validate({**self.to_dict(), **changes})
