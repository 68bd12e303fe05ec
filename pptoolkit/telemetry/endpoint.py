"""One rank's endpoint: what it answers, how others find it, and when it may go.

A collector that copies the run gets the chance to fetch its end: the endpoint of a rank that has finished waits for it a
few seconds. Without a collector it goes at once.
"""

import json
import os
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.exporter import Exporter, Exposition, Request, Response, Route
from pptoolkit.telemetry.heartbeat import Heartbeat
from pptoolkit.telemetry.json_files import read_json, to_json
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.recorder import Recorder
from pptoolkit.telemetry.run_directory import RunDirectory, discovery_targets
from pptoolkit.telemetry.run_info import Endpoint, RunStatus
from pptoolkit.telemetry.security import is_unspecified
from pptoolkit.telemetry.served_files import HEARTBEAT, ServedFiles
from pptoolkit.telemetry.settings import TelemetrySettings

LINGER_S = 5.0
_INDEX = """pptoolkit rank {rank} of run {run}

/metrics     Prometheus metrics
/sd          targets of all ranks
/healthz     sign of life
/run         run.json of this host
/heartbeat   what the rank is doing
/events      event files, from a place on
/scalars     scalar files, likewise
"""


class RankEndpoint:
    """Serves one rank.

    Args:
        settings: Address, port and lock.
        run: The run directory of this host.
        layout: The rank's place.
        exposition: The text of its metrics.
        recorder: For its step.
        drops: For its losses.
        committed: The event file being written and how many of its bytes are there to stay.
        pulse: What the rank is doing at this moment.

    Raises:
        OSError: If no port could be had.
        OverflowError: If the port is none.
    """

    def __init__(
        self,
        settings: TelemetrySettings,
        run: RunDirectory,
        layout: RankLayout,
        *,
        exposition: Exposition,
        recorder: Recorder,
        drops: Drops,
        committed: Callable[[], tuple[Path | None, int]],
        pulse: Callable[[], Heartbeat],
    ) -> None:
        self._run, self._layout, self._recorder, self._drops, self._pulse = run, layout, recorder, drops, pulse
        self._files = ServedFiles(run, layout.rank, committed=committed)
        self._peers: list[int] = []  # ranks of other hosts that we made known in this host's directory
        routes: dict[str, Route] = {
            "/": self._index,
            "/metrics": lambda request: exposition.render(request.headers.get("accept", "")),
            "/sd": self._discovery,
            "/healthz": self._health,
            "/run": self._info,
            HEARTBEAT: self._heartbeat,
            "/events": self._files.events,
            "/scalars": self._files.scalars,
        }
        asked = (settings.port or 0) + layout.rank if settings.port else 0
        host = settings.advertise or (socket.gethostname() if is_unspecified(settings.address) else settings.address)
        self._exporter = Exporter(
            routes, address=settings.address, port=asked, port_step=max(100, layout.ranks), security=settings.security, host=host
        )
        self.url, self.moved, self.asked_port = self._exporter.url, self._exporter.moved, asked

    @property
    def own(self) -> Endpoint:
        """What service discovery says of this rank."""
        return Endpoint(rank=self._layout.rank, url=self.url, replica=self._layout.replica, host=socket.gethostname())

    def add_peers(self, endpoints: Iterable[Endpoint]) -> None:
        """Make ranks known that wrote into another host's directory.

        Raises:
            RunError: If this host's directory cannot be written.
        """
        known = {e.rank: e.url for e in self._run.read_endpoints()}
        for endpoint in endpoints:
            if endpoint.rank != self._layout.rank and known.get(endpoint.rank) != endpoint.url:
                self._run.register_endpoint(endpoint)
                self._peers.append(endpoint.rank)

    def expect_the_end(self) -> None:
        """Tell that all files are complete, before the heartbeat says so: a collector may now fetch the last of them."""
        self._files.expect({"/events", "/scalars", *(("/run",) if self._layout.rank == 0 else ())})

    def close(self) -> None:
        """Wait for a collector to fetch the end, leave service discovery, and stop.

        Raises:
            RunError: If the directory cannot be written; the endpoint has stopped all the same.
        """
        if not self._files.linger(limit_s=LINGER_S):
            self._drops.warn_once("collector", f"a collector did not fetch the end within {LINGER_S:.0f} s; it is in {self._run.path}")
        try:
            self._run.unregister_endpoint(self._layout.rank, *self._peers)
        finally:
            self._exporter.close()

    # -- answers ---------------------------------------------------------------------------------------------------------

    def _index(self, request: Request) -> Response:
        return Response(_INDEX.format(rank=self._layout.rank, run=self._run.path.name).encode(), "text/plain; charset=utf-8")

    def _discovery(self, request: Request) -> Response:
        targets = read_json(self._run.discovery_path)
        if not isinstance(targets, list):
            targets = discovery_targets(self._run.path.name, self._run.read_endpoints())
        return Response(json.dumps(targets).encode())

    def _health(self, request: Request) -> Response:
        body = {"status": "ok", "rank": self._layout.rank, "pid": os.getpid(), "step": self._recorder.step, "dropped": self._drops.total}
        return Response(to_json(body).encode())

    def _info(self, request: Request) -> Response:
        response = Response(self._run.info_path.read_bytes())
        self._files.note("/run")
        return response

    def _heartbeat(self, request: Request) -> Response:
        beat = self._pulse()
        if beat.status != RunStatus.RUNNING:
            self._files.note(HEARTBEAT)
        return Response(to_json(beat.to_dict()).encode())
