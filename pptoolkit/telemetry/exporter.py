"""The HTTP endpoint of one rank. A client that sends nothing or reads nothing costs one thread for a few seconds, never training.

/metrics   Prometheus text, or OpenMetrics with exemplars for those who ask for it
/sd        Prometheus HTTP service discovery for all ranks of the run
/healthz   is the process alive
/run /events /scalars /heartbeat   what `pptoolkit collect` copies: see served_files
"""

import math
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from pptoolkit.telemetry.security import EndpointSecurity

MAX_CLIENTS = 32
CLIENT_TIMEOUT_S = 5.0
_PORT_TRIES = 50


@dataclass(frozen=True, slots=True)
class Response:
    body: bytes
    content_type: str = "application/json; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A GET. Header names are in lower case; of a repeated query key the last counts."""

    query: Mapping[str, str]
    headers: Mapping[str, str]


Route = Callable[[Request], Response]


class Exposition:
    """The text of all metrics. Rendered at most every ``max_age_s``, so twenty scrapers cost training no more than one.

    Args:
        registry: What is exported.
        max_age_s: How old a text may be.

    Attributes:
        source: What is rendered.
    """

    def __init__(self, registry: CollectorRegistry, *, max_age_s: float = 0.25) -> None:
        self.source: Collector = _WithoutCreationTimes(registry)
        self._max_age_s = max_age_s
        self._lock = threading.Lock()
        self._rendered: dict[str, tuple[float, bytes]] = {}

    def render(self, accept: str = "") -> Response:
        """Return the metrics in the format that the Accept header prefers."""
        encoder, content_type = choose_encoder(accept)
        with self._lock:
            now_s = time.monotonic()
            rendered_s, body = self._rendered.get(content_type, (-math.inf, b""))
            if now_s - rendered_s > self._max_age_s:
                body = encoder(self.source)
                self._rendered[content_type] = (now_s, body)
        return Response(body, content_type)

    def render_now(self) -> bytes:
        """Return the metrics as text, fresh."""
        encoder, _ = choose_encoder("")
        body: bytes = encoder(self.source)
        return body


class _WithoutCreationTimes(Collector):
    """Leaves out the ``_created`` series, which would double the counters' number and which nobody here asks for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> list[Metric]:
        metrics = []
        for metric in self._registry.collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            metrics.append(metric)
        return metrics


class Exporter:
    """A small threaded HTTP server.

    Args:
        routes: Answer by path.
        address: Where to listen.
        port: Port to try first; 0: any free one.
        port_step: Distance to the next port to try; more than the number of ranks, so that no rank takes another's.
        security: What clients must show; nothing by default.
        host: Name or address in ``url`` under which others reach the endpoint; default: ``address``.

    Raises:
        OSError: If no port could be had.

    Attributes:
        port: The port that it listens on.
        moved: Whether that is another one than asked for.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        address: str,
        port: int,
        port_step: int = 100,
        security: EndpointSecurity | None = None,
        host: str = "",
    ) -> None:
        lock = security if security is not None else EndpointSecurity()
        self._server = _listen(address, port, port_step, dict(routes), lock)
        self.port = int(self._server.server_address[1])
        self.moved = port not in (0, self.port)
        name = host or address
        self.url = f"{'https' if lock.uses_tls else 'http'}://{f'[{name}]' if ':' in name else name}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.25,), name="pptoolkit-exporter", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening; clients that are being answered are left to their time limit."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(3.0)


def _listen(address: str, port: int, step: int, routes: dict[str, Route], security: EndpointSecurity) -> "_Server":
    candidates = [p for p in range(port, port + _PORT_TRIES * step, step) if p <= 65535] if port else []
    for candidate in candidates:
        try:
            return _Server(address, candidate, routes, security)
        except OSError:
            continue
    return _Server(address, 0, routes, security)


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True  # a restarted run gets its port back at once; a listening socket is still respected
    request_queue_size = 64

    def __init__(self, address: str, port: int, routes: dict[str, Route], security: EndpointSecurity) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.routes, self.security = routes, security
        self._tls = security.server_context()
        self._free = threading.BoundedSemaphore(MAX_CLIENTS)
        super().__init__((address, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # better one refused scrape than a thread for every stuck client
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread could be started
            self._free.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Answer one client; in its own thread, so that who never ends the handshake holds up nobody."""
        if self._tls is None:
            super().finish_request(request, client_address)
            return
        request.settimeout(CLIENT_TIMEOUT_S)
        with self._tls.wrap_socket(request, server_side=True) as secured:
            super().finish_request(secured, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away or timed out is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = CLIENT_TIMEOUT_S
    server_version = "pptoolkit"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        self._answer(send_body=True)

    def do_HEAD(self) -> None:
        self._answer(send_body=False)

    def _answer(self, *, send_body: bool) -> None:
        path, _, query = self.path.partition("?")
        request = Request(dict(parse_qsl(query)), {name.lower(): value for name, value in self.headers.items()})
        route = self.server.routes.get(path)
        if not self.server.security.admits(request.headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Bearer realm="pptoolkit"'}
            asks = b"this endpoint asks for its token: send Authorization: Bearer TOKEN\n"
            response = Response(asks, "text/plain; charset=utf-8", HTTPStatus.UNAUTHORIZED, challenge)
        elif route is None:
            known = ", ".join(sorted(self.server.routes))
            response = Response(f"there is nothing at {path}; try {known}\n".encode(), "text/plain; charset=utf-8", HTTPStatus.NOT_FOUND)
        else:
            try:
                response = route(request)
            except Exception as error:
                text = f"{path} failed: {type(error).__name__}: {error}\n"
                response = Response(text.encode(), "text/plain; charset=utf-8", HTTPStatus.INTERNAL_SERVER_ERROR)
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if send_body:
            self.wfile.write(response.body)

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged."""
