"""Samples for next-token prediction, as tensors: the only module of this package that knows torch."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pptoolkit.data.tokens import Tokens
from pptoolkit.errors import DataError


class TokenDataset:
    """A map-style data set over one long row of tokens.

    Sample i is the i-th window of ``sequence`` tokens; its target is the same window, one token later. Windows do not overlap.

    Args:
        tokens: Token numbers, (N,).
        sequence: Tokens per sample, T.
        source: Where the tokens come from, as messages name it.

    Raises:
        DataError: If there are too few tokens for a single sample.
    """

    def __init__(self, tokens: Tokens | NDArray[np.int64], sequence: int, *, source: str = "the data set") -> None:
        if sequence < 1:
            raise DataError(f"sequence={sequence} is out of range; use 1 or more tokens per sample")
        if len(tokens) < sequence + 1:
            raise DataError(
                f"{source} has {len(tokens)} tokens, and one sample of sequence={sequence} needs {sequence + 1}; "
                "use a shorter sequence, or set data.path to a folder with more text"
            )
        self.tokens, self.sequence, self.source = tokens, sequence, source

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.sequence

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return input (T,) and target (T,), int64."""
        index = int(index)
        if not -len(self) <= index < len(self):
            raise IndexError(f"sample {index} is out of range; {self.source} has {len(self)} samples")
        inputs, targets = self.batch([index % len(self)])
        return inputs[0], targets[0]

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        return (self[index] for index in range(len(self)))

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Return inputs (N, T) and targets (N, T), int64 and contiguous, of the samples ``indices`` (0 to ``len(self) - 1``)."""
        chosen = np.asarray(indices, dtype=np.int64)
        if chosen.size and not (chosen.min() >= 0 and chosen.max() < len(self)):
            raise IndexError(f"samples {chosen.min()} to {chosen.max()} are out of range; {self.source} has {len(self)} samples")
        windows = self.tokens[chosen[:, None] * self.sequence + np.arange(self.sequence + 1)].astype(np.int64)
        return torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())

    def require(self, batch_size: int) -> None:
        """Refuse a batch that this data set cannot fill.

        Raises:
            DataError: Naming the source, the tokens found and the tokens needed.
        """
        if batch_size > len(self):
            raise DataError(
                f"{self.source} has {len(self.tokens)} tokens, which make {len(self)} samples of sequence={self.sequence}; "
                f"batch_size={batch_size} needs {batch_size * self.sequence + 1} tokens; "
                f"use a batch_size of at most {len(self)}, a shorter sequence, or more text (data.path)"
            )

    def split(self, validation_ratio: float) -> tuple["TokenDataset", "TokenDataset"]:
        """Return (training, validation): the last ``validation_ratio`` of the samples is held back, so no token is in both.

        Raises:
            DataError: If the ratio is not between 0 and 1, or leaves one side without a sample.
        """
        if not 0 < validation_ratio < 1:
            raise DataError(f"validation_ratio={validation_ratio} is out of range; use a share between 0 and 1, e.g. 0.1")
        held = round(len(self) * validation_ratio)
        kept = len(self) - held
        if held < 1 or kept < 2:
            raise DataError(
                f"validation_ratio={validation_ratio} of the {len(self)} samples in {self.source} leaves one side without a sample; "
                "use another ratio or more text"
            )
        # A window's last target lies in the next window, so training ends one sample before the border.
        border = kept * self.sequence
        return (
            TokenDataset(self.tokens[:border], self.sequence, source=self.source),
            TokenDataset(self.tokens[border:], self.sequence, source=f"{self.source} (validation)"),
        )
