"""Receive buffers, lent while a micro-batch is in flight and used again afterwards."""

from collections import defaultdict

import torch

from pptoolkit.engine.border import TensorSpec


class BufferPool:
    """Keeps as many buffers of a kind as were ever lent at once: what is in flight, however many micro-batches follow.

    Kinds that a step did not use are dropped at its end, so that changing sequence lengths do not pile up.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[torch.Tensor]] = defaultdict(list)
        self._used: set[tuple[tuple[int, ...], torch.dtype]] = set()
        self.allocated_bytes = 0  # of the buffers that exist, lent or free

    def lend(self, spec: TensorSpec) -> torch.Tensor:
        """Return an uninitialised contiguous tensor of ``spec``'s shape and dtype."""
        kind = spec.shape, spec.dtype
        self._used.add(kind)
        free = self._free[kind]
        if free:
            return free.pop()
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device=self._device)
        self.allocated_bytes += tensor.numel() * tensor.element_size()
        return tensor

    def give_back(self, tensor: torch.Tensor) -> None:
        """Take back what :meth:`lend` gave; the caller must not read it again."""
        self._free[tuple(tensor.shape), tensor.dtype].append(tensor)

    def end_step(self) -> None:
        """Drop the kinds that were not lent since the last call; every buffer has been given back."""
        for kind in self._free.keys() - self._used:
            self.allocated_bytes -= sum(t.numel() * t.element_size() for t in self._free.pop(kind))
        self._used.clear()
