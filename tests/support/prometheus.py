"""A real Prometheus server on loopback for tests: started with a configuration, asked over HTTP, gone after the test."""

import json
import shutil
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.stand_in import wait_until

REASON = "{} is not installed (Debian package prometheus)"


def find_tool(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``, or skip the test."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(REASON.format(name))
    return found


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running server."""

    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """Return ``data`` of an API answer.

        Raises:
            AssertionError: With the server's own words, if it refuses.
        """
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=20) as answer:
                body = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path} {parameters}: {error.read().decode()}") from None
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of an instant query: ``metric`` and ``value``."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def value(self, expression: str) -> float | None:
        """Return the one value of an expression, or None where it has none."""
        found = self.query(expression)
        assert len(found) <= 1, (expression, found)
        return float(found[0]["value"][1]) if found else None

    def targets(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get("targets", state="active")["activeTargets"]
        return found


@contextmanager
def prometheus_server(folder: Path, config: str) -> Iterator[Prometheus]:
    """Run Prometheus with ``config`` and its data below ``folder``."""
    program = find_tool("prometheus")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    log = folder / "prometheus.log"
    command = [
        program,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT)
    server = Prometheus(f"http://127.0.0.1:{port}", log)
    try:
        wait_until(lambda: _ready(server, process), what="Prometheus")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ready(server: Prometheus, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, f"Prometheus ended:\n{server.log.read_text(errors='replace')[-4000:]}"
    try:
        with urllib.request.urlopen(f"{server.url}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
