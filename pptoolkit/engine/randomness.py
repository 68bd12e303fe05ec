"""Seeds that do not know the cut: from names and numbers, never from which process draws first.

A layer's weights come from (seed, name); its dropout from (seed, step, micro-batch, name, replica). So the same seed
gives the same run under every cut, schedule and number of stages.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

import numpy as np
import torch

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)


def layer_seed(seed: int, name: str) -> int:
    """Return the 63-bit seed under which layer ``name`` is initialised."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest(), "big") >> 1


def draw_seeds(bases: Sequence[int], *, step: int, micro_batches: range, replica: int) -> list[list[int]]:
    """Return the 63-bit seeds of some layers' random draws: for each micro-batch, one a layer.

    Mixed with the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), so that neighbouring steps and micro-batches
    give unrelated streams. Arithmetic is modulo 2**64.

    Args:
        bases: Each layer's :func:`layer_seed`.
        step: Step index.
        micro_batches: Their indices in the step.
        replica: Index of the replica.
    """
    numbers = np.arange(micro_batches.start + 1, micro_batches.stop + 1, dtype=np.uint64)[:, None]
    value = np.asarray(bases, dtype=np.uint64)[None, :]
    for part in (np.array([[step + 1]], dtype=np.uint64), numbers, np.array([[replica + 1]], dtype=np.uint64)):
        value = value + _GAMMA * part
        value = (value ^ (value >> _SHIFTS[0])) * _MIX[0]
        value = (value ^ (value >> _SHIFTS[1])) * _MIX[1]
        value = value ^ (value >> _SHIFTS[2])
    seeds: list[list[int]] = (value >> np.uint64(1)).tolist()
    return seeds


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
        self.start: Callable[[int], object] = torch.default_generator.manual_seed
        """Let the next layer draw under one of :meth:`seeds`."""
        if device.type == "cuda":
            self.start = partial(_seed_both, torch.default_generator, _generator_of(device))

    def seeds(self, step: int, micro_batches: range) -> list[list[int]]:
        """Return for each micro-batch of a step the seeds under which the stage's layers draw."""
        first = self.first_micro_batch
        shifted = range(first + micro_batches.start, first + micro_batches.stop)
        return draw_seeds(self._bases, step=step, micro_batches=shifted, replica=self._replica)

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


def _generator_of(device: torch.device) -> torch.Generator:
    torch.cuda.init()
    return torch.cuda.default_generators[device.index if device.index is not None else torch.cuda.current_device()]


def _seed_both(host: torch.Generator, device: torch.Generator, seed: int) -> None:
    """A layer on a GPU may still draw on the host."""
    host.manual_seed(seed)
    device.manual_seed(seed)


_Seeds = dict[int, list[list[int]]]  # by stage and micro-batch, one a layer


class StepSeeds:
    """The seeds of all forwards of a step on this rank; those of the next step are drawn while the rank has nothing else to do.

    Args:
        seeders: Of each stage of the rank.
        micro_batches: Micro-batches per step.
    """

    def __init__(self, seeders: Mapping[int, LayerSeeder], micro_batches: int) -> None:
        self._seeders, self._micro_batches = seeders, range(micro_batches)
        self._any = next(iter(seeders.values()))  # they share the rank's generators, and are told of accumulation together
        self._key = (-1, 0)  # step and first micro-batch: under accumulation a step has several passes
        self._seeds: _Seeds = {}
        self._ahead: dict[tuple[int, int], _Seeds] = {}

    def begin_step(self, step: int) -> None:
        """Have the seeds of ``step`` ready."""
        self._key = (step, self._any.first_micro_batch)
        drawn = self._ahead.get(self._key)
        self._seeds = drawn if drawn is not None else self._draw(step)
        self._ahead = {key: seeds for key, seeds in self._ahead.items() if key[0] in (step, step + 1)}

    def draw_ahead(self) -> None:
        """Draw the seeds of the same pass of the next step, unless that is done."""
        step, first = self._key
        if (step + 1, first) not in self._ahead:
            self._ahead[step + 1, first] = self._draw(step + 1)

    def of(self, stage: int, micro_batch: int) -> list[int]:
        """Return one seed a layer."""
        return self._seeds[stage][micro_batch]

    def generators_untouched(self) -> AbstractContextManager[None]:
        """As :meth:`LayerSeeder.untouched`."""
        return self._any.untouched()

    def _draw(self, step: int) -> _Seeds:
        return {stage: seeder.seeds(step, self._micro_batches) for stage, seeder in self._seeders.items()}
