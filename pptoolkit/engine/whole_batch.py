"""What a step's whole batch counts for, over all replicas: known, or asked of the others."""

from typing import Any

from pptoolkit.engine import micro_batch as mb
from pptoolkit.engine.loader import BatchSource, BatchStream
from pptoolkit.engine.step_end import BatchAgreement, agree_on_batch
from pptoolkit.engine.training_step import TrainingStep
from pptoolkit.errors import DataError
from pptoolkit.telemetry import Op
from pptoolkit.telemetry.recorder import Recorder


def learn_whole_batch(
    training: TrainingStep,
    source: BatchSource | BatchStream,
    batch: tuple[Any, Any] | None,
    *,
    step: int,
    least: int,
    recorder: Recorder,
) -> BatchAgreement:
    """Learn what the whole batch counts for: by asking the others only where this rank cannot know.

    Args:
        training: This rank's part of the training.
        source: Where the batch came from.
        batch: This replica's part; None: its data has ended.
        step: Step index, for errors.
        least: Micro-batches that the part is cut into.
        recorder: Where events go.

    Raises:
        DataError: On every rank, if a replica's part has fewer samples than micro-batches.
    """
    samples = mb.batch_size(batch[0]) if batch is not None else 0
    if isinstance(source, BatchSource) and training.counts_samples:
        return BatchAgreement(float(source.batch_size), source.batch_size, ended=False, too_small=False)
    count = (float(samples) if training.counts_samples else training.count(batch[1])) if batch is not None else 0.0
    speaks = training.pipeline.mesh.pipeline_rank == 0  # one rank of a replica
    with recorder.span(Op.REDUCE):
        agreed = agree_on_batch(
            count=count if speaks else 0.0,
            samples=samples if speaks else 0,
            ended=batch is None,
            too_small=batch is not None and samples < least,
        )
    if agreed.too_small and not agreed.ended:
        raise DataError(
            f"a replica's batch of step {step} has fewer samples than its {least} micro-batches "
            f"(here: {samples} samples); use larger batches or fewer micro-batches"
        )
    return agreed
