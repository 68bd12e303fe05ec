"""The order in which samples are seen: a pure function of (seed, step), so every rank and every resumed run has the same.

Nothing is carried from step to step, hence nothing to save in a checkpoint but the step's number.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pptoolkit.errors import DataError

Indices = NDArray[np.int64]
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def steps_per_epoch(samples: int, batch_size: int, *, drop_last: bool = True) -> int:
    """Return how many batches one pass over the samples has."""
    return samples // batch_size if drop_last else -(-samples // batch_size)


def epoch_order(samples: int, *, seed: int, epoch: int) -> Indices:
    """Return a permutation of ``range(samples)``, the same for the same arguments on every platform and numpy version.

    Samples are sorted by a 64-bit mix of (seed, epoch, sample). The mix is the finaliser of SplitMix64 (Steele, Lea and
    Flood, "Fast splittable pseudorandom number generators", 2014); being one-to-one, it leaves no ties.
    """
    start = np.array([(seed * _GOLDEN + 1) & _MASK], dtype=np.uint64)
    start = _mix(_mix(start) + np.uint64(epoch & _MASK))
    keys = _mix(start + np.arange(1, samples + 1, dtype=np.uint64) * np.uint64(_GOLDEN))
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def batches(
    samples: int,
    batch_size: int,
    *,
    seed: int,
    start_step: int = 0,
    shuffle: bool = True,
    drop_last: bool = True,
    source: str = "the data set",
) -> Iterator[Indices]:
    """Return an endless iterator over batches of sample indices, epoch after epoch, each epoch in an order of its own.

    Args:
        samples: Number of samples in the data set.
        batch_size: Samples per step.
        seed: The run's seed.
        start_step: The step to begin at; ``batches(..., start_step=k)`` continues what the first k steps of a run began.
        shuffle: False: in the data set's own order.
        drop_last: Leave out what remains of an epoch after its last full batch; False: yield it as a smaller batch.
        source: The data set, as messages name it.

    Raises:
        DataError: If the batch is larger than the data set, or a number is out of range. Raised at the call, not at the first batch.
    """
    if batch_size < 1:
        raise DataError(f"batch_size={batch_size} is out of range; use 1 or more")
    if start_step < 0:
        raise DataError(f"start_step={start_step} is out of range; steps are counted from 0")
    if samples < batch_size:
        raise DataError(f"batch_size={batch_size} is larger than {source}, which has {samples} samples; use a smaller batch or more data")
    return _endless(samples, batch_size, seed, start_step, shuffle, drop_last)


def _endless(samples: int, batch_size: int, seed: int, step: int, shuffle: bool, drop_last: bool) -> Iterator[Indices]:
    per_epoch = steps_per_epoch(samples, batch_size, drop_last=drop_last)
    epoch, position = divmod(step, per_epoch)
    while True:
        order = epoch_order(samples, seed=seed, epoch=epoch) if shuffle else np.arange(samples, dtype=np.int64)
        for batch in range(position, per_epoch):
            yield order[batch * batch_size : (batch + 1) * batch_size]
        epoch, position = epoch + 1, 0
