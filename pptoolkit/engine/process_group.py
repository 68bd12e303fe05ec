"""Joining the other ranks: torchrun's environment, or one process on its own. Gloo on the CPU."""

import os
import socket
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from pptoolkit.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Where this process stands among all of them."""

    rank: int
    ranks: int
    ranks_here: int  # on this host
    owned: bool  # we made the process group, so we end it

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


def join(*, timeout_s: float = 1800.0) -> World:
    """Join the process group that torchrun's environment describes, or make one of a single process.

    Args:
        timeout_s: How long a rank may wait for another before it gives up. Generous: slow is not dead.

    Raises:
        ConfigError: If the environment is only half set.
    """
    if dist.is_initialized():
        here = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
        return World(rank=dist.get_rank(), ranks=dist.get_world_size(), ranks_here=here, owned=False)
    given = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name in os.environ]
    timeout = timedelta(seconds=timeout_s)
    if not given:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=timeout)
    elif len(given) == 4:
        dist.init_process_group("gloo", timeout=timeout)
    else:
        raise ConfigError(
            f"the environment has {', '.join(given)} but not the rest of RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; start with torchrun"
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", dist.get_world_size()))
    limit_threads(here)
    return World(rank=dist.get_rank(), ranks=dist.get_world_size(), ranks_here=here, owned=True)


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
