"""One step of the optimizer: batches through the pipeline, one reduction over replicas, one agreement, one update."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.loss import MicroBatchLoss
from pptoolkit.engine.pipeline import Pipeline
from pptoolkit.engine.replicas import Replicas
from pptoolkit.engine.runtime import BeforeLast
from pptoolkit.engine.step_end import StepProposal
from pptoolkit.engine.step_losses import PassLoss
from pptoolkit.engine.update import Update
from pptoolkit.telemetry import Op
from pptoolkit.telemetry.recorder import LONG_WAIT_NS, Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """The same on every rank, the learning rate of a rank without parameters aside."""

    loss: float  # mean over the whole batch, all replicas
    gradient_norm: float | None
    skipped: bool  # the gradients overflowed, and no rank took the step
    stop: bool
    compute_s: float  # summed over the ranks
    learning_rate: float | None  # of the first parameter group, in this step
    exchange_clocks: bool = False  # a rank found that it is time to


class TrainingStep:
    """Runs steps on this rank.

    Args:
        pipeline: This rank's stages.
        loss: The loss that the pipeline calls.
        replicas: How replicas stay equal.
        update: The optimizer.
        recorder: Where events go.
        accumulation: Pipeline steps per step.
    """

    def __init__(
        self, pipeline: Pipeline, *, loss: MicroBatchLoss, replicas: Replicas, update: Update, recorder: Recorder, accumulation: int
    ) -> None:
        self.pipeline, self.replicas, self.update = pipeline, replicas, update
        self._loss, self._recorder, self._accumulation = loss, recorder, accumulation
        self._last_wait_ns = 0
        self.watch_gradients: Callable[[], None] | None = None  # called when the step's gradients are complete, before clipping

    @property
    def counts_samples(self) -> bool:
        """Whether the mean is over samples, so that nobody has to look at targets."""
        return self._loss.counts_samples

    def count(self, targets: Any) -> float:
        """Return how much this replica's part of a batch counts for in the mean."""
        return self._loss.count(targets)

    def run(
        self,
        inputs: Any,
        targets: Any,
        *,
        step: int,
        total: float,
        sampled: int = -1,
        stop: Callable[[], bool] = lambda: False,
        exchange_clocks: bool = False,
    ) -> StepOutcome:
        """Train on one batch.

        Args:
            inputs: This replica's part of the batch.
            targets: Likewise.
            step: Step index.
            total: What the whole batch counts for, all replicas together.
            sampled: Micro-batch whose layers are timed, or -1.
            stop: Whether this rank was asked to stop after the step.
            exchange_clocks: This rank finds that it is time to compare clocks.
        """
        recorder = self._recorder
        self.update.set_learning_rate(step)
        rate = self.update.learning_rate
        with recorder.span(Op.REDUCE):
            self.replicas.gather()
        proposal: StepProposal | None = None

        def propose(loss: float, compute_s: float, squared_norm: float = 0.0) -> None:
            nonlocal proposal
            proposal = StepProposal(loss=loss, squared_norm=squared_norm, stop=stop(), compute_s=compute_s, exchange_clocks=exchange_clocks)

        def propose_early(loss: float, compute_s: float) -> None:
            propose(loss, compute_s)
            now_ns = time.monotonic_ns()
            recorder.record(Op.REDUCE_POST, -1, -1, -1, now_ns, now_ns)

        # Without a norm of the finished gradients there is nothing to wait for: ranks agree while they wait for their last action.
        # On a GPU, reading the loss there would hold up the host.
        early = propose_early if not self.update.needs_norm and self.pipeline.device.type == "cpu" else None
        with recorder.span(Op.SCHEDULE):
            share, host_s = self._accumulate(inputs, targets, step=step, total=total, sampled=sampled, before_last=early)
            # On a GPU the host waits here, where the loss is read, and nowhere before.
            compute_s = self.pipeline.clock.settle(host_s)
            own_loss = share()
        with recorder.span(Op.REDUCE):
            self.replicas.reduce()
            if self.watch_gradients is not None:
                self.watch_gradients()
            if proposal is None:
                propose(own_loss, compute_s, self.update.squared_norm())
            assert proposal is not None
            if self._last_wait_ns > LONG_WAIT_NS:
                recorder.bubbles.announce(self._last_wait_ns)
            before_ns = time.monotonic_ns()
            agreed = proposal.agree()
            self._last_wait_ns = time.monotonic_ns() - before_ns
        with self.pipeline.clock.span(Op.OPTIMIZER):
            before = self.update.skipped_steps
            norm = self.update.apply(agreed.gradient_norm, step=step)
        return StepOutcome(
            loss=agreed.loss,
            gradient_norm=norm,
            skipped=self.update.skipped_steps > before,
            stop=agreed.stop,
            compute_s=agreed.compute_s,
            learning_rate=rate,
            exchange_clocks=agreed.exchange_clocks,
        )

    def _accumulate(
        self, inputs: Any, targets: Any, *, step: int, total: float, sampled: int, before_last: BeforeLast | None
    ) -> tuple[Callable[[], float], float]:
        """Run all batches of the step; return what reads this rank's share of the loss, and the seconds that the host saw it compute."""
        pipeline, count = self.pipeline, self.pipeline.schedule.micro_batches
        factor = self.update.scale.factor * self.replicas.loss_factor
        passes: list[PassLoss] = []
        compute_s = 0.0

        def share() -> float:
            return sum(done.read() for done in passes)

        def tell(loss: float, so_far_s: float) -> None:
            if before_last is not None:
                before_last((share() + loss) / factor, compute_s + so_far_s)

        parts = zip(mb.split(inputs, self._accumulation), mb.split(targets, self._accumulation), strict=True)
        for index, (part, wanted) in enumerate(parts):
            weights = self.shares(part, wanted, count=count, total=total)
            last = index + 1 == self._accumulation
            passes.append(
                pipeline.run_pass(
                    part,
                    wanted,
                    step=step,
                    sampled=sampled if index == 0 else -1,
                    weights=[w * factor for w in weights],
                    first_micro_batch=index * count,
                    accumulates=not last,
                    before_last=tell if last and before_last is not None else None,
                )
            )
            compute_s += pipeline.compute_s
        return lambda: share() / factor, compute_s

    def shares(self, inputs: Any, targets: Any, *, count: int, total: float) -> list[float]:
        """Return the share of the whole batch that each micro-batch counts for; nothing to count at all gives zeros."""
        # Targets may have no samples of their own to go by; inputs always do.
        samples = self._loss.counts_samples
        counts = mb.sizes(inputs, count) if samples else [self._loss.count(part) for part in mb.split(targets, count)]
        return [counted / total if total else 0.0 for counted in counts]

    @torch.no_grad()
    def evaluate(self, inputs: Any, targets: Any, *, step: int) -> float:
        """Return the summed loss over what this replica's part of a batch counts for, on the last stage's rank; else 0."""
        count = min(self.pipeline.schedule.micro_batches, mb.batch_size(inputs))
        weights = self.shares(inputs, targets, count=count, total=1.0)
        return self.pipeline.evaluate(inputs, targets, step=step, weights=weights)
