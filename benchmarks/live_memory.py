"""How much memory a stretch of a program needs at its peak, counted in two ways.

*Live tensor bytes*: every storage on the host that an operation of torch returns is counted from then until its memory is freed, whoever
holds it: parameters, gradients, the batch, receive buffers, and what autograd keeps. What a kernel needs inside of itself is not
seen. Exact, and the same in every run.

*Resident set*: what the kernel of the operating system says the process had in physical memory. It has all of the former in it, the
interpreter, the libraries, what the allocator keeps for later, and the pages of code that were touched. Linux only.
"""

import sys
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
_REAL = (Tensor, torch.nn.Parameter)
_RESET_PEAK = "5"  # of proc(5): set the peak resident set to the present one


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all storages that are alive and came from an operation while it was entered.

    Attributes:
        now: Bytes alive.
        peak: The most since :meth:`begin`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: dict[int, int] = {}  # address of a storage -> its bytes

    def begin(self) -> None:
        """Begin to look for the peak."""
        self.peak = self.now

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for leaf in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            # A fake tensor (a subclass), which shapes are inferred with, has no memory.
            if type(leaf) in _REAL and leaf.device.type == "cpu":
                self._note(leaf.untyped_storage())
        return result

    def _note(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._known.get(key)
        if known == size:
            return
        if known is None:
            weakref.finalize(storage, self._forget, key).atexit = False
        self._known[key] = size  # a storage may be resized
        self.now += size - (known or 0)
        self.peak = max(self.peak, self.now)

    def _forget(self, key: int) -> None:
        self.now -= self._known.pop(key)


class PeakMemory:
    """Both peaks of a stretch of a program: enter it, call :meth:`begin` where the stretch begins, and read it inside.

    A rank of a benchmark has to be started with :data:`ENVIRONMENT`, so that freed memory leaves the resident set.
    """

    def __init__(self) -> None:
        self._live = LiveBytes()

    def __enter__(self) -> "PeakMemory":
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._live.__exit__(kind, error, trace)

    def begin(self) -> None:
        """Begin to look for the peaks."""
        self._live.begin()
        if sys.platform == "linux":
            _CLEAR.write_text(_RESET_PEAK)

    @property
    def live_bytes(self) -> int:
        """Most live tensor bytes since :meth:`begin`."""
        return self._live.peak

    @property
    def resident_bytes(self) -> int:
        """Largest resident set since :meth:`begin`; 0 where the system does not tell."""
        if sys.platform != "linux":
            return 0
        (line,) = (line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024


# glibc: a tensor of more than 64 KiB has pages of its own, and they go back when it is freed; else the limit grows with the tensors.
ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": str(64 << 10), "MALLOC_TRIM_THRESHOLD_": str(64 << 10)}
