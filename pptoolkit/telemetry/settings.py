"""Settings of telemetry: what a user may turn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from pptoolkit.config import TelemetryConfig
from pptoolkit.errors import ConfigError
from pptoolkit.telemetry.event_writer import DEFAULT_SEGMENT_BYTES
from pptoolkit.telemetry.security import EndpointSecurity, is_loopback, is_unspecified, read_token

EVERY_STEP = "every-step"
DEFAULT_MAX_BYTES = 16 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """How a rank is watched.

    Args:
        enabled: False keeps nothing and starts nothing.
        address: Where the endpoint listens. Beyond loopback it needs ``tls_cert`` and ``tls_key``, or a ``token``, or both.
        advertise: Name or address under which other hosts reach it. Empty: ``address``, or, where that is ``0.0.0.0``, this host's
            address on the way to rank 0.
        port: Port of rank 0; rank r takes ``port + r``, or the next free one. 0: any free port. None: no endpoint.
        tls_cert: Certificate chain (PEM file); the endpoint then speaks HTTPS.
        tls_key: Its private key (PEM file).
        tls_client_ca: Only clients with a certificate of this CA (PEM file) are let in.
        token: Only clients that send this bearer token are let in. Never written to the run directory.
        flush_s: How long an event waits for the next bubble; without one, it is written twice that time after it happened. What a
            thread of telemetry does comes more rarely, up to five times, where it would take more than 0.1 % of a processor's time.
        segment_bytes: An event file that has grown past this is followed by the next one.
        max_bytes: Bound of all event files of the run, an equal share for each rank: past it, a rank's oldest files are removed,
            and the events in them counted. None: no bound.
        detail: ``"every-step"``, or ``{"every": 50}`` to keep the events of every 50th step on disk. Metrics and scalars
            see every step either way, and the events that were left out are counted.
        buffer_events: Events held in memory while the disk is behind; what comes on top is dropped and counted.
        heartbeat_s: Time between heartbeats.
        hardware_s: Time between samples of CPU, memory, network and GPU.
        pushgateway: Address of a Prometheus Pushgateway that is given the final metrics, e.g. ``"http://127.0.0.1:9091"``.
        clocks_s: Time between exchanges of clock readings with rank 0; all ranks follow rank 0's setting.
    """

    enabled: bool = True
    address: str = "127.0.0.1"
    advertise: str = ""
    port: int | None = 9100
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    token: str = field(default="", repr=False)
    flush_s: float = 1.0
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    max_bytes: int | None = DEFAULT_MAX_BYTES
    detail: str | Mapping[str, int] = EVERY_STEP
    buffer_events: int = 1 << 18
    heartbeat_s: float = 1.0
    hardware_s: float = 5.0
    pushgateway: str | None = None
    clocks_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("flush_s", "heartbeat_s", "hardware_s"):
            if not 0.01 <= getattr(self, name) <= 60:
                raise ConfigError(f"telemetry.{name}={getattr(self, name)!r} is out of range; use 0.01 to 60 seconds")
        for name, least in (("segment_bytes", 1 << 12), ("buffer_events", 1 << 10)):
            if getattr(self, name) < least:
                raise ConfigError(f"telemetry.{name}={getattr(self, name)!r} is too small; use at least {least}")
        if self.port is not None and not 0 <= self.port <= 65535:
            raise ConfigError(f"telemetry.port={self.port!r} is no port; use 0 (any free one) to 65535")
        if not 0.1 <= self.clocks_s <= 3600:
            raise ConfigError(f"telemetry.clocks_s={self.clocks_s!r} is out of range; use 0.1 to 3600 seconds")
        if self.max_bytes is not None and self.max_bytes < 1 << 16:
            raise ConfigError(f"telemetry.max_bytes={self.max_bytes!r} is too small; use at least {1 << 16}, or None for no bound")
        self.security.check(where="telemetry")
        if not is_loopback(self.address) and not self.security.locks:
            raise ConfigError(
                f"telemetry.address={self.address!r} can be reached from other machines, and nothing protects it; set telemetry.tls_cert "
                "and tls_key, or a token (token_file or token_env), or both, or use 127.0.0.1"
            )
        if self.pushgateway is not None and not is_http_url(self.pushgateway):
            raise ConfigError(f'telemetry.pushgateway={self.pushgateway!r} is no address; write it like "http://127.0.0.1:9091"')
        _ = self.every

    @classmethod
    def from_config(cls, config: TelemetryConfig) -> "TelemetrySettings":
        """Return the settings that a job file asks for; a token is read from where the file says.

        Raises:
            ConfigError: If a value, the token or a TLS file is wrong.
        """
        return cls(
            enabled=config.enabled,
            address=config.address,
            advertise=config.advertise,
            port=config.port,
            tls_cert=config.tls_cert,
            tls_key=config.tls_key,
            tls_client_ca=config.tls_client_ca,
            token=read_token(file=config.token_file, variable=config.token_env, where="telemetry"),
            detail=EVERY_STEP if config.every == 1 else {"every": config.every},
            max_bytes=config.max_bytes or None,
            clocks_s=config.clocks_s,
            pushgateway=config.pushgateway,
        )

    def reachable_at(self, address: str) -> "TelemetrySettings":
        """Return the settings with ``address`` advertised, where the endpoint listens everywhere and nothing else was said."""
        return replace(self, advertise=address) if is_unspecified(self.address) and not self.advertise else self

    @property
    def security(self) -> EndpointSecurity:
        """What the endpoint asks of its clients."""
        return EndpointSecurity(tls_cert=self.tls_cert, tls_key=self.tls_key, tls_client_ca=self.tls_client_ca, token=self.token)

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
