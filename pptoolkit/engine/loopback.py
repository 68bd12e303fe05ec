"""A rendezvous for ranks on one machine that listens on the loopback address only.

torchrun's own rendezvous opens its store on every address of the machine.
"""

import socket
from typing import Any

from torch.distributed import TCPStore
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry

BACKEND = "pptoolkit-loopback"
_ADDRESS = "127.0.0.1"


def interface() -> str:
    """Return the name of the loopback interface, for Gloo."""
    return next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")


def register() -> None:
    """Make :data:`BACKEND` known to torchrun's agent; calling it again changes nothing."""
    if BACKEND not in rendezvous_handler_registry._registry:
        rendezvous_handler_registry.register(BACKEND, lambda parameters: LoopbackRendezvous(parameters))


class LoopbackRendezvous(RendezvousHandler):
    """One node, one round: a store on a loopback port that the kernel chooses."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        self._run_id = parameters.run_id
        listener = socket.create_server((_ADDRESS, 0))
        self._port = listener.getsockname()[1]
        self._store: Any = TCPStore(
            _ADDRESS, self._port, is_master=True, wait_for_workers=False, multi_tenant=False, master_listen_fd=listener.detach()
        )

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(self._store, 0, 1, RendezvousStoreInfo(_ADDRESS, self._port))

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """Nobody else joins."""

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        return True
