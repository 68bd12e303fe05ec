"""Seeds that do not know the cut: from names and numbers, never from which process draws first.

A layer's weights come from (seed, name); its dropout from (seed, step, micro-batch, name, replica). So the same seed
gives the same run under every cut, schedule and number of stages.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


def layer_seed(seed: int, name: str) -> int:
    """Return the 63-bit seed under which layer ``name`` is initialised."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big") >> 1


def draw_seed(base: int, step: int, micro_batch: int, replica: int) -> int:
    """Return the 63-bit seed of one layer's random draws in one micro-batch; ``base`` is its :func:`layer_seed`.

    Mixed with the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), so that neighbouring steps and micro-batches
    give unrelated streams.
    """
    value = base
    for part in (step + 1, micro_batch + 1, replica + 1):
        value = (value + 0x9E3779B97F4A7C15 * part) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


class LayerSeeder:
    """Seeds the generators of one device before a layer runs.

    Args:
        seed: The run's seed.
        names: Names of the stage's layers, in order.
        replica: Index of this replica.

    Attributes:
        first_micro_batch: Added to a micro-batch's index: under gradient accumulation the later batches of a step draw anew.
    """

    def __init__(self, seed: int, names: Sequence[str], replica: int, device: torch.device) -> None:
        self._bases = [layer_seed(seed, name) for name in names]
        self._replica = replica
        self._device = device
        self.first_micro_batch = 0

    def seed(self, index: int, step: int, micro_batch: int) -> None:
        value = draw_seed(self._bases[index], step, self.first_micro_batch + micro_batch, self._replica)
        torch.default_generator.manual_seed(value)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(value)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Give the process its own random state back afterwards."""
        state = torch.default_generator.get_state()
        device_state = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        try:
            yield
        finally:
            torch.default_generator.set_state(state)
            if device_state is not None:
                torch.cuda.set_rng_state(device_state, self._device)
