"""Settings of telemetry: what a user may turn."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pptoolkit.errors import ConfigError
from pptoolkit.telemetry.event_writer import DEFAULT_SEGMENT_BYTES

EVERY_STEP = "every-step"


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """How a rank is watched.

    Args:
        enabled: False keeps nothing and starts nothing.
        address: Where the metrics endpoint listens; it has no lock, so only a loopback address is taken.
        port: Port of rank 0; rank r takes ``port + r``, or the next free one. 0: any free port. None: no endpoint.
        flush_s: Longest time that an event waits before it is written.
        segment_bytes: An event file that has grown past this is followed by the next one.
        detail: ``"every-step"``, or ``{"every": 50}`` to keep the events of every 50th step on disk. Metrics and scalars
            see every step either way, and the events that were left out are counted.
        buffer_events: Events held in memory while the disk is behind; what comes on top is dropped and counted.
        heartbeat_s: Time between heartbeats.
        hardware_s: Time between samples of CPU, memory, network and GPU.
        pushgateway: Address of a Prometheus Pushgateway that is given the final metrics, e.g. ``"http://127.0.0.1:9091"``.
    """

    enabled: bool = True
    address: str = "127.0.0.1"
    port: int | None = 9100
    flush_s: float = 0.25
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    detail: str | Mapping[str, int] = EVERY_STEP
    buffer_events: int = 1 << 18
    heartbeat_s: float = 1.0
    hardware_s: float = 1.0
    pushgateway: str | None = None

    def __post_init__(self) -> None:
        for name in ("flush_s", "heartbeat_s", "hardware_s"):
            if not 0.01 <= getattr(self, name) <= 60:
                raise ConfigError(f"telemetry.{name}={getattr(self, name)!r} is out of range; use 0.01 to 60 seconds")
        for name, least in (("segment_bytes", 1 << 12), ("buffer_events", 1 << 10)):
            if getattr(self, name) < least:
                raise ConfigError(f"telemetry.{name}={getattr(self, name)!r} is too small; use at least {least}")
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ConfigError(f"telemetry.port={self.port!r} is no port; use 0 (any free one) to 65535")
        if not _is_loopback(self.address):
            raise ConfigError(
                f"telemetry.address={self.address!r} is no loopback address, and the metrics endpoint has no lock; "
                "use 127.0.0.1, and a proxy with TLS to reach it from elsewhere"
            )
        if self.pushgateway is not None and not is_http_url(self.pushgateway):
            raise ConfigError(f'telemetry.pushgateway={self.pushgateway!r} is no address; write it like "http://127.0.0.1:9091"')
        _ = self.every

    @property
    def every(self) -> int:
        """Every how many steps the events are kept on disk.

        Raises:
            ConfigError: If ``detail`` is neither ``"every-step"`` nor ``{"every": n}`` with n of at least 1.
        """
        if self.detail == EVERY_STEP:
            return 1
        if isinstance(self.detail, Mapping) and set(self.detail) == {"every"}:
            every = self.detail["every"]
            if isinstance(every, int) and not isinstance(every, bool) and every >= 1:
                return every
        raise ConfigError(f'telemetry.detail={self.detail!r} is unknown; write "every-step", or {{every = 50}} for every 50th step')


def is_http_url(text: str) -> bool:
    """Whether ``text`` is an http or https address with a host."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and " " not in text


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
