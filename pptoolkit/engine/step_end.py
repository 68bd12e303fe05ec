"""What all ranks agree on: at the end of a step its loss, its norm and who must stop; before it, where need be, its batch."""

import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True)
class StepAgreement:
    """The same on every rank."""

    loss: float
    gradient_norm: float
    stop: bool
    compute_s: float  # summed over the ranks
    exchange_clocks: bool = False


class StepProposal:
    """This rank's share of the agreement, on its way to the others while the rank goes on.

    Args:
        loss: The batch's mean loss on the last stage's rank, 0 elsewhere.
        squared_norm: Sum of squares of this rank's gradients; 0 where it is not asked for.
        stop: This rank was asked to stop after the step.
        compute_s: Time this rank computes in the step.
        exchange_clocks: This rank found that it is time to.
    """

    def __init__(self, *, loss: float, squared_norm: float, stop: bool, compute_s: float, exchange_clocks: bool) -> None:
        # On the host and in float64: small, exact, and no device has to wait for it.
        self._shares = torch.tensor([loss, squared_norm, float(stop), compute_s, float(exchange_clocks)], dtype=torch.float64)
        self._work = dist.all_reduce(self._shares, async_op=True) if dist.get_world_size() > 1 else None

    def agree(self) -> StepAgreement:
        """Return the sums over all ranks; blocks until all have come."""
        if self._work is not None:
            self._work.wait()
        loss, norm, stop, compute, exchange = self._shares.tolist()
        return StepAgreement(loss, norm**0.5 if norm == norm else norm, stop > 0, compute, exchange > 0)


@dataclass(frozen=True, slots=True)
class BatchAgreement:
    """The same on every rank."""

    total: float  # what the whole batch counts for
    samples: int
    ended: bool  # a rank has no batch any more
    too_small: bool  # a rank's part cannot be cut into its micro-batches


def agree_on_batch(*, count: float, samples: int, ended: bool, too_small: bool) -> BatchAgreement:
    """Sum what each replica's part counts for; blocks until all have come.

    Args:
        count: What the replica's part counts for, on one rank of it; 0 on the others.
        samples: Likewise.
        ended: This rank's data has ended.
        too_small: This rank's part has fewer samples than micro-batches.
    """
    total, number, over, small = sum_over_ranks(count, float(samples), float(ended), float(too_small))
    return BatchAgreement(total, round(number), over > 0, small > 0)


def sum_over_ranks(*values: float) -> tuple[float, ...]:
    """Return each value summed over all ranks; on the host and in float64, as in :class:`StepProposal`."""
    shares = torch.tensor(values, dtype=torch.float64)
    if dist.get_world_size() > 1:
        dist.all_reduce(shares)
    return tuple(shares.tolist())


class StopRequest:
    """Turns Ctrl-C into "stop after this step", so that no rank leaves the others in the middle of one.

    A second Ctrl-C, more than two seconds after the first, interrupts at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self._asked_at = 0.0
        self._before: Any = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        # One Ctrl-C can arrive twice: from the terminal and from the launcher.
        if self.asked and now - self._asked_at > 2.0:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._asked_at = True, now
