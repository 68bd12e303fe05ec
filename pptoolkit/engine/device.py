"""Where a rank computes: the CPU, or a GPU of its own. Deciding is pure and is told what there is; only a few functions look.

The decision comes before the process group, whose backends depend on it.
"""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.distributed as dist

from pptoolkit.errors import ConfigError, counted

_CPU = torch.device("cpu")


class DeviceSetting(StrEnum):
    """What a user may ask for."""

    CPU = "cpu"
    CUDA = "cuda"  # a GPU for each rank, or an error
    AUTO = "auto"  # CUDA where every rank of this host can have a GPU of its own, else the CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerators:
    """What torch sees on this host.

    Args:
        devices: CUDA devices that this process may use.
        built: Whether this torch was built for CUDA at all.
        nccl: Whether it can carry tensors between them.
        version: Of torch, for messages.
    """

    devices: int
    built: bool
    nccl: bool
    version: str

    @classmethod
    def visible(cls) -> "Accelerators":
        """Look; no device is touched."""
        nccl = dist.is_available() and dist.is_nccl_available()
        built = torch.version.cuda is not None
        return cls(devices=torch.cuda.device_count() if built else 0, built=built, nccl=nccl, version=torch.__version__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where one rank computes, as it tells the others; ``gpu`` is the device's UUID, "" on the CPU."""

    kind: str
    host: str
    gpu: str

    @classmethod
    def of(cls, device: torch.device) -> "Place":
        """Return the place of this rank."""
        return cls(kind=device.type, host=socket.gethostname(), gpu=gpu_uuid(device) or "")


def choose_device(setting: DeviceSetting | str, *, local_rank: int, ranks_here: int, there: Accelerators) -> torch.device:
    """Return the device of one rank: ``cuda:<local rank>``, modulo the devices where each rank is shown only its own.

    Args:
        setting: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        local_rank: This rank's place among those of its host.
        ranks_here: Ranks on this host.
        there: What torch sees.

    Raises:
        ConfigError: If the setting is unknown, or asks for CUDA where there is none.
    """
    asked = _member(setting)
    if asked is DeviceSetting.AUTO:
        fits = there.devices >= ranks_here and (there.nccl or ranks_here == 1)
        asked = DeviceSetting.CUDA if there.devices and fits else DeviceSetting.CPU
    if asked is DeviceSetting.CPU:
        return _CPU
    _require_cuda(there)
    return torch.device("cuda", local_rank % there.devices)


def device_reason(setting: DeviceSetting | str, device: torch.device, *, ranks_here: int, there: Accelerators) -> str:
    """Return, in one line, which device ``"auto"`` has become and why; "" where the user has named one.

    Args:
        setting: As asked for.
        device: What :func:`choose_device` made of it.
        ranks_here: Ranks on this host.
        there: What torch sees.
    """
    if _member(setting) is not DeviceSetting.AUTO:
        return ""
    ranks, found = _counted(ranks_here, "rank"), _counted(there.devices, "CUDA device")
    if not there.built:
        why = f"torch {there.version} is built without CUDA"
    elif not there.devices:
        why = f"torch {there.version} sees no CUDA device"
    elif device.type == "cpu" and there.devices >= ranks_here:
        why = f"torch {there.version} has no NCCL, which carries tensors between the {ranks} of this host"
    else:
        why = f"torch sees {found} for the {ranks} of this host"
    return f"device auto: {device.type}, because {why}"


def check_launch(setting: DeviceSetting | str, *, ranks: int, there: Accelerators) -> None:
    """Refuse, before a process starts, what the ranks of this host could not run on.

    All of them will see the same devices as the launcher does, so their number decides.

    Raises:
        ConfigError: If CUDA is asked for and there is none, no NCCL, or fewer devices than ranks.
    """
    if _member(setting) is not DeviceSetting.CUDA:
        return
    _require_cuda(there)
    _require_nccl(there, ranks)
    if ranks > there.devices:
        raise ConfigError(
            f"device='cuda' with {counted(ranks, 'rank')} on this host, but torch sees {counted(there.devices, 'CUDA device')}, "
            f"and NCCL refuses two ranks on one device; start at most {there.devices}, with several stages a rank "
            "(schedule 'interleaved-1f1b' or 'zbv'), or use device='cpu'"
        )


def check_places(places: Sequence[Place]) -> None:
    """Refuse places that cannot train together; the same answer on every rank.

    Args:
        places: Of all ranks, by rank.

    Raises:
        ConfigError: If some ranks are on a GPU and others are not, or two of them share one.
    """
    kinds = {place.kind: rank for rank, place in reversed(list(enumerate(places)))}
    if len(kinds) > 1:
        found = " and ".join(f"rank {rank} on {places[rank].host} has {kind}" for kind, rank in sorted(kinds.items()))
        raise ConfigError(
            f"the ranks of one run must be on one kind of device, but {found}; set device='cpu', or 'cuda' on hosts that all have it"
        )
    owner: dict[tuple[str, str], int] = {}
    for rank, place in enumerate(places):
        first = owner.setdefault((place.host, place.gpu), rank)
        if place.gpu and first != rank:
            raise ConfigError(
                f"ranks {first} and {rank} on {place.host} share GPU {place.gpu}, which NCCL refuses; "
                "start one rank per GPU, with several stages a rank if need be, or use device='cpu'"
            )


def backend_for(device: torch.device, *, ranks: int, there: Accelerators) -> str:
    """Return the process group's backends: on a GPU, NCCL carries what is there, and small agreements on the host stay with Gloo.

    A single rank sends nothing, so it needs no NCCL.

    Raises:
        ConfigError: If this torch has no NCCL and ranks on GPUs need it.
    """
    if device.type != "cuda" or ranks == 1:
        return "gloo"
    _require_nccl(there, ranks)
    return "cpu:gloo,cuda:nccl"


def check_backends(config: str, device: torch.device, *, ranks: int) -> None:
    """Refuse a process group, made by the caller of the trainer, that cannot carry what the device needs.

    Args:
        config: As ``dist.get_backend_config()`` tells it, e.g. ``"cpu:gloo,cuda:nccl"``.
        device: Of this rank.
        ranks: In the process group.

    Raises:
        ConfigError: Naming what to initialise it with.
    """
    carried = dict(pair.split(":", 1) for pair in config.split(",") if ":" in pair)
    if device.type == "cuda" and ("cpu" not in carried or (ranks > 1 and carried.get("cuda") != "nccl")):
        raise ConfigError(
            f"the process group that was there before the trainer has the backends {config!r}, and device='cuda' needs Gloo on the host "
            "and NCCL between GPUs; call dist.init_process_group('cpu:gloo,cuda:nccl'), or leave it to the trainer"
        )


def local_place() -> tuple[int, int]:
    """Return this rank's place on its host and the number of ranks there, as torchrun says.

    Without torchrun: the place in a process group that is there, taken to be of one host; or that of a process on its own.
    """
    if "LOCAL_RANK" not in os.environ and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    ranks_here = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1"
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("RANK") or "0"), int(ranks_here)


def use(device: torch.device) -> None:
    """Make ``device`` this process's current one, so that nothing lands on another by default."""
    if device.type == "cuda":
        torch.cuda.init()
        torch.cuda.set_device(device)


def gpu_uuid(device: torch.device) -> str | None:
    """Return a GPU's UUID, by which NVML knows it too; None on the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else None


def _member(setting: DeviceSetting | str) -> DeviceSetting:
    try:
        return DeviceSetting(setting)
    except ValueError:
        raise ConfigError(f"device={setting!r} is unknown; use 'cpu', 'cuda' or 'auto'") from None


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _require_cuda(there: Accelerators) -> None:
    if there.devices:
        return
    if not there.built:
        raise ConfigError(f"device='cuda', but torch {there.version} is built without CUDA; install a build with it, or use device='cpu'")
    raise ConfigError(
        f"device='cuda', but torch {there.version} sees no CUDA device; look at nvidia-smi and at CUDA_VISIBLE_DEVICES, or use device='cpu'"
    )


def _require_nccl(there: Accelerators, ranks: int) -> None:
    if ranks > 1 and not there.nccl:
        raise ConfigError(
            f"device='cuda' with {counted(ranks, 'rank')} needs NCCL, which torch {there.version} is built without; "
            "install a build with it, or use one rank"
        )
