"""Joining the other ranks: torchrun's environment, or one process on its own. Gloo on the host, NCCL between GPUs."""

import os
import socket
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from pptoolkit.engine import device as devices
from pptoolkit.engine.device import Accelerators, DeviceSetting, Place
from pptoolkit.errors import ConfigError

TIMEOUT = timedelta(seconds=1800)
"""How long a rank waits for another before it gives up. Generous: slow is not dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where this process stands among all of them."""

    rank: int
    ranks: int
    ranks_here: int  # on this host
    owned: bool  # we made the process group, so we end it
    device: torch.device  # where this rank computes
    device_reason: str = ""  # which device "auto" has become and why; "" where one was named
    gpus: tuple[str, ...] = ()  # UUID of each rank's GPU; empty on the CPU

    @property
    def address(self) -> str:
        """This host's address on the way to rank 0, for others to reach it; loopback for a job of one host."""
        master = os.environ.get("MASTER_ADDR", "")
        if not master:
            return "127.0.0.1"
        try:
            family, *_, target = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(target)  # sends nothing; asks the kernel for the route
                return str(probe.getsockname()[0])
        except OSError:
            return socket.gethostname()


def join(device: DeviceSetting | str = DeviceSetting.CPU, *, timeout: timedelta = TIMEOUT) -> World:
    """Join the process group that torchrun's environment describes, or make one of a single process.

    Args:
        device: Where the ranks compute: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        timeout: How long a rank may wait for another before it gives up.

    Raises:
        ConfigError: If the environment is only half set, or the device cannot be had.
    """
    owned = not dist.is_initialized()
    there = Accelerators.visible()
    local_rank, ranks_here = devices.local_place()
    chosen = devices.choose_device(device, local_rank=local_rank, ranks_here=ranks_here, there=there)
    devices.use(chosen)
    if owned:
        _init(chosen, there, timeout)
    else:
        devices.check_backends(str(dist.get_backend_config()), chosen, ranks=dist.get_world_size())
    here = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    if owned:
        limit_threads(here)
    reason = devices.device_reason(device, chosen, ranks_here=ranks_here, there=there)
    world = World(rank=dist.get_rank(), ranks=dist.get_world_size(), ranks_here=here, owned=owned, device=chosen, device_reason=reason)
    if device == DeviceSetting.CPU:
        return world
    try:
        return replace(world, gpus=_agree_on_places(chosen))
    except ConfigError:
        leave(world)
        raise


def _init(device: torch.device, there: Accelerators, timeout: timedelta) -> None:
    given = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name in os.environ]
    if not given:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    elif len(given) == 4:
        # No device_id: with it, NCCL would carry all messages between two ranks, both ways, one after the other.
        dist.init_process_group(devices.backend_for(device, ranks=int(os.environ["WORLD_SIZE"]), there=there), timeout=timeout)
    else:
        raise ConfigError(
            f"the environment has {', '.join(given)} but not the rest of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; start with torchrun"
        )


def _agree_on_places(device: torch.device) -> tuple[str, ...]:
    """Refuse, on every rank, places that do not go together; return the GPU of each rank."""
    places: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(places, Place.of(device))
    devices.check_places(places)
    return tuple(place.gpu for place in places) if device.type == "cuda" else ()


def limit_threads(ranks_here: int) -> None:
    """Share the cores among the ranks of this host, unless the user said otherwise with OMP_NUM_THREADS.

    torchrun sets OMP_NUM_THREADS=1 by itself when it is unset; then nothing is left to do.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks_here))


def leave(world: World) -> None:
    """End the process group if :func:`join` made it."""
    if world.owned and dist.is_initialized():
        dist.destroy_process_group()
