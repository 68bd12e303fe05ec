"""Receive buffers, lent while a micro-batch is in flight and used again afterwards."""

from collections import defaultdict

import torch

from pptoolkit.engine.border import TensorSpec


class BufferPool:
    """Keeps as many buffers of a kind as were ever lent at once: what is in flight, however many micro-batches follow."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]] = defaultdict(list)
        self.allocated_bytes = 0

    def lend(self, spec: TensorSpec) -> torch.Tensor:
        """Return an uninitialised contiguous tensor of ``spec``'s shape and dtype."""
        free = self._free[spec.shape, spec.dtype]
        if free:
            return free.pop()
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
        self.allocated_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def give_back(self, tensor: torch.Tensor) -> None:
        """Take back what :meth:`lend` gave; the caller must not read it again."""
        self._free[tuple(tensor.shape), tensor.dtype].append(tensor)

    def forget(self) -> None:
        """Drop the free buffers, e.g. when shapes change for good."""
        self._free.clear()
