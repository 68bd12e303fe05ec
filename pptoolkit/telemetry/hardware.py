"""What the machine does: CPU, memory, network always; a GPU through NVML where there is one. Absence is an object."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import psutil

MemorySource = Callable[[], Mapping[str, int]]
"""Returns the engine's allocator figures, bytes by kind: ``allocated``, ``reserved``; ``peak_allocated`` for peaks between two looks.

One is a count: ``retries``, how often the allocator found no room so far, and freed what it had kept before it asked again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSample:
    """One look at the machine.

    Args:
        host_cpu_ratio: Share of all CPUs' time in use since the last look, 0 to 1.
        memory_bytes: By kind: resident (this process), host and device (all processes), and what the memory source told.
        network_bytes: Sent and received over all interfaces since the last look.
        device_utilization_ratio: Share of time in which the GPU ran a kernel, 0 to 1; None without a GPU.
        device_power_watts: Power that the GPU draws; None where that is not known.
        device_temperature_celsius: Temperature of its chip, likewise.
        memory_limit_bytes: How much there is at all, of the kinds for which that is known: host, device.
        allocator_retries: How often the engine's allocator found no room so far; None where there is none to ask.
    """

    host_cpu_ratio: float
    memory_bytes: Mapping[str, int]
    network_bytes: Mapping[str, int]
    device_utilization_ratio: float | None = None
    device_power_watts: float | None = None
    device_temperature_celsius: float | None = None
    memory_limit_bytes: Mapping[str, int] = field(default_factory=dict)
    allocator_retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What a GPU says of itself now; None for what is not known.

    Args:
        utilization_ratio: Share of time in which a kernel ran, 0 to 1.
        used_bytes: Memory in use on the device, by every process.
        total_bytes: Memory of the device.
        power_watts: Power that it draws.
        temperature_celsius: Temperature of the chip.
    """

    utilization_ratio: float | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None
    power_watts: float | None = None
    temperature_celsius: float | None = None


class Gpu(Protocol):
    """The GPU of one rank."""

    def read(self) -> GpuReading: ...


class NoGpu:
    """A rank without a GPU, or with one that NVML cannot see."""

    def read(self) -> GpuReading:
        return GpuReading()


class NvmlGpu:
    """A GPU seen through NVML; made by :func:`find_gpu`."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle

    def read(self) -> GpuReading:
        nvml, handle = self._nvml, self._handle
        load = self._ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
        memory = self._ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
        milliwatts = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        celsius = self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        return GpuReading(
            utilization_ratio=None if load is None else float(load.gpu) / 100,
            used_bytes=None if memory is None else int(memory.used),
            total_bytes=None if memory is None else int(memory.total),
            power_watts=None if milliwatts is None else float(milliwatts) / 1e3,
            temperature_celsius=None if celsius is None else float(celsius),
        )

    def _ask(self, question: Callable[[], Any]) -> Any:
        """Return the answer, or None: not every card measures everything, and one may fall off the bus."""
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def find_gpu(uuid: str | None) -> Gpu:
    """Return the GPU with this UUID, e.g. ``"GPU-8a1b..."``, or :class:`NoGpu`.

    The UUID, not an index: NVML counts all GPUs of the machine, torch those that CUDA_VISIBLE_DEVICES leaves.
    """
    if uuid is None:
        return NoGpu()
    try:
        import pynvml
    except ImportError:
        return NoGpu()
    try:
        pynvml.nvmlInit()
        return NvmlGpu(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"))
    except pynvml.NVMLError:
        return NoGpu()


class HardwareSampler:
    """Takes samples; the first one has no earlier look to compare with, so its CPU share and traffic are 0.

    Args:
        gpu: The rank's GPU.
        memory_source: Adds to the kinds of memory; what it raises, the caller sees.
    """

    def __init__(self, *, gpu: Gpu | None = None, memory_source: MemorySource | None = None) -> None:
        self._gpu = gpu if gpu is not None else NoGpu()
        self._memory_source = memory_source
        self._process = psutil.Process()
        self._network: dict[str, int] | None = None
        psutil.cpu_percent()

    def sample(self) -> HardwareSample:
        """Look at the machine now."""
        host = psutil.virtual_memory()
        memory = {"resident": int(self._process.memory_info().rss), "host": int(host.total - host.available)}
        limits = {"host": int(host.total)}
        gpu = self._gpu.read()
        if gpu.used_bytes is not None:
            memory["device"] = gpu.used_bytes
        if gpu.total_bytes is not None:
            limits["device"] = gpu.total_bytes
        if self._memory_source is not None:
            memory.update({str(kind): int(size) for kind, size in self._memory_source().items()})
        retries = memory.pop("retries", None)
        return HardwareSample(
            host_cpu_ratio=min(1.0, psutil.cpu_percent() / 100),
            memory_bytes=memory,
            network_bytes=self._traffic(),
            device_utilization_ratio=gpu.utilization_ratio,
            device_power_watts=gpu.power_watts,
            device_temperature_celsius=gpu.temperature_celsius,
            memory_limit_bytes=limits,
            allocator_retries=retries,
        )

    def _traffic(self) -> dict[str, int]:
        counters = psutil.net_io_counters()
        now = {"sent": counters.bytes_sent, "received": counters.bytes_recv} if counters is not None else {}
        before, self._network = self._network if self._network is not None else now, now
        return {direction: max(0, size - before.get(direction, size)) for direction, size in now.items()}
