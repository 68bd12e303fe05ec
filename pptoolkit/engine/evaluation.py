"""The mean loss over a data set, the same on every rank, with training left as it was."""

from pptoolkit.engine.loader import BatchSource
from pptoolkit.engine.step_end import sum_over_ranks
from pptoolkit.engine.training_step import TrainingStep


def mean_loss(training: TrainingStep, source: BatchSource, *, batches: int | None) -> float:
    """Return the mean loss over ``source``; every rank calls it together.

    Args:
        training: This rank's part of the training.
        source: This replica's view of the data set.
        batches: How many batches to take; None: all, the last one maybe smaller.
    """
    size = source.batch_size
    samples = source.samples if batches is None else min(batches * size, source.samples)
    loss = count = 0.0
    training.replicas.gather()
    try:
        for step, start in enumerate(range(0, samples, size)):
            part = source.part(range(start, min(start + size, samples)))
            if not len(part):
                continue  # a last batch of fewer samples than replicas
            inputs, targets = source.batch(part)
            loss += training.evaluate(inputs, targets, step=step)
            count += training.count(targets) if training.pipeline.owns_last else 0.0
    finally:
        training.replicas.scatter()
    total_loss, total_count = sum_over_ranks(loss, count)
    return total_loss / total_count if total_count else float("nan")
