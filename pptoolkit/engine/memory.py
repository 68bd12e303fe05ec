"""Memory in use, read cheaply enough to note it with every compute op: the process's on the CPU, the allocator's on a GPU."""

import os
from collections.abc import Callable, Mapping
from functools import partial

import torch


class ResidentMemory:
    """Reads /proc/self/statm through a file that stays open; 0 where there is none."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        try:
            self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def read(self) -> int:
        """Return the resident set in bytes."""
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 96, 0).split(b" ", 2)[1]) * self._page


def allocator_bytes(device: torch.device) -> Mapping[str, int]:
    """Return a CUDA device's allocator figures by kind, as telemetry's memory source; the peak is of the time since the last call."""
    stats = torch.cuda.memory_stats(device)
    torch.cuda.reset_peak_memory_stats(device)
    return {
        "allocated": int(stats.get("allocated_bytes.all.current", 0)),
        "reserved": int(stats.get("reserved_bytes.all.current", 0)),
        "peak_allocated": int(stats.get("allocated_bytes.all.peak", 0)),
        "peak_reserved": int(stats.get("reserved_bytes.all.peak", 0)),
        "retries": int(stats.get("num_alloc_retries", 0)),
    }


def allocated_bytes(device: torch.device) -> int:
    """Return what tensors hold of a CUDA device now, as ``torch.cuda.memory_allocated``, which sorts all its figures for one."""
    return int(torch.cuda.memory_stats_as_nested_dict(device).get("allocated_bytes", {}).get("all", {}).get("current", 0))


def memory_in_use(device: torch.device) -> Callable[[], int]:
    """Return what reads the bytes to note with a compute op: resident in the process, or held by tensors on the GPU."""
    return partial(allocated_bytes, device) if device.type == "cuda" else ResidentMemory().read


def memory_source(device: torch.device) -> Callable[[], Mapping[str, int]] | None:
    """Return telemetry's source of allocator figures; None on the CPU, whose memory telemetry reads itself."""
    return partial(allocator_bytes, device) if device.type == "cuda" else None
