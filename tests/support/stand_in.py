"""HTTP servers for tests that stand in for services which are not here: strict, on loopback, and gone after the test."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """A request as it came in; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "application/json; charset=UTF-8"
    delay_s: float = 0.0

    @classmethod
    def json(cls, status: int, body: Any) -> "Answer":
        return cls(status, json.dumps(body).encode())


@contextmanager
def served(respond: Callable[[Asked], Answer]) -> Iterator[str]:
    """Answer every request with what ``respond`` returns; yield the server's address. A fault of ``respond`` is a 500 with its text."""
    leaving = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            size = int(self.headers.get("content-length", 0))
            asked = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, self.rfile.read(size))
            try:
                answer = respond(asked)
            except Exception as error:
                answer = Answer.json(500, {"message": f"{type(error).__name__}: {error}"})
            if answer.delay_s and leaving.wait(answer.delay_s):
                return
            try:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.content_type)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
            except OSError:
                pass  # the client gave up first

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _any

        def log_message(self, format: str, *args: Any) -> None:
            """The test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        leaving.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


def wait_until(condition: Callable[[], Any], *, limit_s: float = 30.0, what: str = "the condition") -> Any:
    """Return the first true value of ``condition``.

    Raises:
        AssertionError: If there is none in time.
    """
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {limit_s:.0f} s"
        time.sleep(0.1)
    return found
