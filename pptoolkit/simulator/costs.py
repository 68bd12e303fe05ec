"""What the simulator is told about a model and its machines. Frozen settings, all times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pptoolkit.errors import InputError
from pptoolkit.schedule import Action, ActionKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times of a step's parts.

    Args:
        op_s: Compute time by (stage, kind). A missing B is taken as I + W.
        overrides: An op's own time, before ``op_s``: to replay a run with what was measured.
        transfer_s: Time a message spends on the link from one stage to its neighbour, latency and bytes over bandwidth; the key
            ``(1, 0)`` is the gradient's way back. Missing: 0. Messages of one direction of one border follow each other on the link.
        transfer_overrides: A message's own time on the link, by the compute action that made it.
        send_s: Host time that handing over one message takes on the sending rank.
        recv_s: Host time that taking one message takes on the receiving rank, after it has arrived.
        action_overhead_s: Host time before each compute action; it passes while the rank waits for a message.
        overhead_overrides: An action's own host time before it, before ``action_overhead_s``.
        before_s: Seconds before a rank's first action of a step (data, host), by rank. Missing: 0.
        after_s: Seconds after its last one (collectives, optimizer), by rank. Missing: 0.
        joined_end: Whether all ranks end a step together (a global norm, a shared loss), rather than each run ahead on its own.
    """

    op_s: Mapping[tuple[int, ActionKind], float]
    overrides: Mapping[Action, float] = field(default_factory=dict)
    transfer_s: Mapping[tuple[int, int], float] = field(default_factory=dict)
    transfer_overrides: Mapping[Action, float] = field(default_factory=dict)
    send_s: float = 0.0
    recv_s: float = 0.0
    action_overhead_s: float = 0.0
    overhead_overrides: Mapping[Action, float] = field(default_factory=dict)
    before_s: Mapping[int, float] = field(default_factory=dict)
    after_s: Mapping[int, float] = field(default_factory=dict)
    joined_end: bool = True

    def __post_init__(self) -> None:
        for name in ("send_s", "recv_s", "action_overhead_s"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name}={getattr(self, name)} is not a duration; use 0 or more seconds")
        for name in ("op_s", "overrides", "transfer_s", "transfer_overrides", "overhead_overrides", "before_s", "after_s"):
            for key, seconds in getattr(self, name).items():
                if not seconds >= 0:  # also refuses NaN
                    raise InputError(f"{name}[{key}]={seconds} is not a duration; use 0 or more seconds")

    def duration_s(self, stage: int, kind: ActionKind) -> float:
        """Return the compute time of an op without a time of its own.

        Raises:
            InputError: If the costs name no time for it.
        """
        seconds = self.op_s.get((stage, kind))
        if seconds is None and kind is ActionKind.BACKWARD:
            parts = (self.op_s.get((stage, ActionKind.BACKWARD_INPUT)), self.op_s.get((stage, ActionKind.BACKWARD_WEIGHT)))
            if parts[0] is not None and parts[1] is not None:
                return parts[0] + parts[1]
        if seconds is None:
            raise InputError(f"the costs have no time for {kind.name} of stage {stage}; add op_s[({stage}, ActionKind.{kind.name})]")
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCosts:
    """Bytes by stage. ``activation_bytes`` are held from a micro-batch's F to its B (or W); ``static_bytes`` always. Missing: 0."""

    activation_bytes: Mapping[int, int] = field(default_factory=dict)
    static_bytes: Mapping[int, int] = field(default_factory=dict)


def equal_costs(stages: int, *, forward_s: float = 1.0, backward_input_s: float = 1.0, backward_weight_s: float = 1.0) -> Costs:
    """Return costs of equal stages with free links: what a schedule itself is worth. B takes as long as I and W together."""
    return Costs(
        op_s={
            (stage, kind): seconds
            for stage in range(stages)
            for kind, seconds in (
                (ActionKind.FORWARD, forward_s),
                (ActionKind.BACKWARD, backward_input_s + backward_weight_s),
                (ActionKind.BACKWARD_INPUT, backward_input_s),
                (ActionKind.BACKWARD_WEIGHT, backward_weight_s),
            )
        }
    )
