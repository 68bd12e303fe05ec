"""Telemetry of one rank: starts and ends the drain, the endpoint, the heartbeat and the hardware sampler.

Nothing here raises into training. What fails is said once and counted; the rest goes on.
"""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from pptoolkit.errors import RunError
from pptoolkit.telemetry.drain import Drain
from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.event_writer import EventWriter
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.exporter import Exporter, Exposition, Request, Response
from pptoolkit.telemetry.hardware import HardwareSample, HardwareSampler, MemorySource, find_gpu
from pptoolkit.telemetry.heartbeat import take_pulse
from pptoolkit.telemetry.json_files import read_json, replace_text, to_json
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.links import LinkPairing
from pptoolkit.telemetry.metrics import RANK_OPS, STAGE_OPS, RankMetrics
from pptoolkit.telemetry.periodic import Periodic
from pptoolkit.telemetry.pushgateway import push_final
from pptoolkit.telemetry.recorder import NullRecorder, Recorder
from pptoolkit.telemetry.run_directory import RunDirectory, discovery_targets
from pptoolkit.telemetry.run_info import Endpoint
from pptoolkit.telemetry.scalars import ScalarWriter, StepSummary
from pptoolkit.telemetry.settings import TelemetrySettings


class Telemetry:
    """Telemetry that is switched off: the same interface, and nothing happens. :meth:`start` returns the real one.

    Attributes:
        recorder: Where the training thread records.
        metrics_url: Where the rank's metrics are served; None without an endpoint.
    """

    recorder: Recorder
    metrics_url: str | None = None

    def __init__(self) -> None:
        self.recorder = NullRecorder()

    @staticmethod
    def start(
        settings: TelemetrySettings,
        run: RunDirectory,
        layout: RankLayout,
        *,
        attempt: int = 0,
        clock_source: str = "monotonic",
        registry: CollectorRegistry | None = None,
        memory_source: MemorySource | None = None,
        gpu_uuid: str | None = None,
    ) -> "Telemetry":
        """Start telemetry for one rank; the run directory must have been created.

        Args:
            settings: What is on.
            run: Where everything is written.
            layout: The rank's place, e.g. ``RankLayout.from_info(run.read_info(), rank)``.
            attempt: Which start of the run's processes this is.
            clock_source: Where op times come from: ``"monotonic"`` or ``"cuda-events"``.
            registry: Where metrics are exported; default: one of this rank's own.
            memory_source: The engine's allocator figures by kind, bytes; called once a second from another thread.
            gpu_uuid: The rank's GPU.
        """
        if not settings.enabled:
            return Telemetry()
        return RankTelemetry(
            settings,
            run,
            layout,
            attempt=attempt,
            clock_source=clock_source,
            registry=registry,
            memory_source=memory_source,
            gpu_uuid=gpu_uuid,
        )

    @property
    def dropped(self) -> Mapping[str, int]:
        """Events dropped so far, by reason."""
        return {}

    def step_done(self, summary: StepSummary) -> None:
        """Tell the outcome of the step that ``recorder.end_step()`` has just ended."""

    def add_clock(self, offset_ns: int, uncertainty_ns: int, *, local_ns: int | None = None) -> None:
        """Tell how far this rank's clock is from rank 0's: offset = rank 0's clock - this one, now or at ``local_ns``."""

    def add_probe(self, *, stage: int, peer: int, start_ns: int, end_ns: int, bytes: int) -> None:
        """Tell what the idle link from ``stage`` to ``peer`` managed before training; on the rank that sent."""

    def observe_staleness(self, steps: int) -> None:
        """Tell how many optimizer steps older than its target an applied gradient's weights were."""

    def flush(self, *, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far is on disk and in the metrics; False if that took too long."""
        return True

    def close(self, status: str = "finished") -> None:
        """Write what is left, leave the final metrics and a last heartbeat with ``status``, and stop. May be called twice."""


class RankTelemetry(Telemetry):
    """Telemetry that runs; made by :meth:`Telemetry.start`."""

    def __init__(
        self,
        settings: TelemetrySettings,
        run: RunDirectory,
        layout: RankLayout,
        *,
        attempt: int,
        clock_source: str,
        registry: CollectorRegistry | None,
        memory_source: MemorySource | None,
        gpu_uuid: str | None,
    ) -> None:
        self._settings, self._run, self._layout, self._attempt = settings, run, layout, attempt
        self._status, self._closed = "running", False
        self._hardware_sample: HardwareSample | None = None
        self.recorder = Recorder(capacity=settings.buffer_events)
        self.drops = Drops(layout.rank)
        self.metrics = RankMetrics(layout, registry=registry, attempt=attempt)
        self._exposition = Exposition(self.metrics.registry)
        self._hardware = HardwareSampler(gpu=find_gpu(gpu_uuid), memory_source=memory_source)
        self._drain = Drain(
            recorder=self.recorder,
            writer=EventWriter(
                run,
                rank=layout.rank,
                replica=layout.replica,
                attempt=attempt,
                clock_source=clock_source,
                segment_bytes=settings.segment_bytes,
            ),
            scalars=ScalarWriter(run, rank=layout.rank, attempt=attempt),
            metrics=self.metrics,
            drops=self.drops,
            pairing=LinkPairing(run, layout, attempt=attempt),
            keep_every=settings.every,
        )
        self._exporter = self._start_exporter(settings)
        self.metrics_url = f"{self._exporter.url}/metrics" if self._exporter is not None else None
        self._drainer = Periodic("drain", self._drain.run, interval_s=settings.flush_s, drops=self.drops)
        self._pulse = Periodic("heartbeat", self._beat, interval_s=settings.heartbeat_s, drops=self.drops)
        self._sampler = Periodic("hardware sampler", self._sample_hardware, interval_s=settings.hardware_s, drops=self.drops)
        for thread in (self._drainer, self._pulse, self._sampler):
            thread.start()

    @property
    def dropped(self) -> Mapping[str, int]:
        return self.drops.counts

    def step_done(self, summary: StepSummary) -> None:
        self._drain.add_summary(summary, self.recorder.last_step_ns)

    def add_clock(self, offset_ns: int, uncertainty_ns: int, *, local_ns: int | None = None) -> None:
        now_ns = time.monotonic_ns() if local_ns is None else local_ns
        self.recorder.record(Op.CLOCK, -1, -1, -1, now_ns, offset_ns, uncertainty_ns)

    def add_probe(self, *, stage: int, peer: int, start_ns: int, end_ns: int, bytes: int) -> None:
        self.recorder.record(Op.PROBE, stage, -1, peer, start_ns, end_ns, bytes)

    def observe_staleness(self, steps: int) -> None:
        self.metrics.observe_staleness(steps)

    def flush(self, *, timeout_s: float = 5.0) -> bool:
        return self._drainer.run_now(timeout_s=timeout_s)

    def close(self, status: str = "finished") -> None:
        if self._closed:
            return
        self._closed, self._status = True, status
        self._sampler.stop()
        if self._drainer.stop():
            self._attempt_to("end the event file", self._drain.close)
        else:
            self.drops.warn_once("close", f"the last events in {self._run.path} could not be written in time; is its disk alive?")
        self._pulse.stop()
        self._attempt_to("write the final metrics", self._leave_metrics)
        if self._exporter is not None:
            self._exporter.close()
            self._attempt_to("take the endpoint out of service discovery", lambda: self._run.unregister_endpoint(self._layout.rank))
        if self._settings.pushgateway is not None:
            self._push_metrics(self._settings.pushgateway)

    def _start_exporter(self, settings: TelemetrySettings) -> Exporter | None:
        if settings.port is None:
            return None
        asked = settings.port + self._layout.rank if settings.port else 0
        routes = {
            "/": self._index,
            "/metrics": lambda request: self._exposition.render(request.headers.get("accept", "")),
            "/sd": self._discovery,
            "/healthz": self._health,
        }
        try:
            exporter = Exporter(routes, address=settings.address, port=asked, port_step=max(100, self._layout.ranks))
        except (OSError, OverflowError) as error:
            self.drops.warn_once("port", f"cannot serve metrics on {settings.address}:{asked}: {error}; choose another telemetry.port")
            return None
        if exporter.moved:
            self.drops.warn_once("port", f"port {asked} is busy, so metrics are at {exporter.url}/metrics; choose another telemetry.port")
        endpoint = Endpoint(rank=self._layout.rank, url=exporter.url, replica=self._layout.replica, host=socket.gethostname())
        self._attempt_to("register the endpoint", lambda: self._run.register_endpoint(endpoint))
        return exporter

    def _beat(self) -> None:
        sample = self._hardware_sample
        extra = {} if sample is None else {"resident_bytes": sample.memory_bytes["resident"], "host_cpu_ratio": sample.host_cpu_ratio}
        beat = take_pulse(
            self.recorder, rank=self._layout.rank, attempt=self._attempt, status=self._status, dropped=self.drops.total, **extra
        )
        gauges = self.metrics.gauges
        gauges.set("heartbeat_timestamp_seconds", beat.unix_s)
        for op in (*STAGE_OPS, *RANK_OPS):
            name = op.name.lower()
            gauges.set("inflight_op_start_timestamp_seconds", (beat.op_start_unix_s or 0) if name == beat.op else 0, name)
        checkpoint_ns = self._drain.last_checkpoint_ns
        if checkpoint_ns is not None:
            gauges.set("checkpoint_age_seconds", max(0, beat.monotonic_ns - checkpoint_ns) / 1e9)
        self._attempt_to("write the heartbeat", lambda: beat.write(self._run))

    def _sample_hardware(self) -> None:
        self._hardware_sample = sample = self._hardware.sample()
        self.metrics.observe_hardware(sample)

    def _leave_metrics(self) -> None:
        self.metrics.set_dropped(self.drops.counts)
        replace_text(self._run.metrics_path(self._layout.rank), self._exposition.render_now().decode())

    def _push_metrics(self, gateway: str) -> None:
        labels = {"run_id": self._run.path.name, "rank": str(self._layout.rank), "replica": str(self._layout.replica)}
        failure = push_final(gateway, self._exposition.source, {**labels, "host": socket.gethostname()})
        if failure:
            kept = self._run.metrics_path(self._layout.rank)
            self.drops.warn_once("push", f"cannot push the final metrics to {gateway}: {failure}; they are in {kept}")

    def _attempt_to(self, goal: str, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, RunError) as error:
            self.drops.warn_once(goal, f"cannot {goal}: {error}")

    # -- what the endpoint answers beside metrics ------------------------------------------------------------------------

    def _index(self, request: Request) -> Response:
        title = f"pptoolkit rank {self._layout.rank} of run {self._run.path.name}"
        text = f"{title}\n\n/metrics   Prometheus metrics\n/sd        targets of all ranks\n/healthz   sign of life\n"
        return Response(text.encode(), "text/plain; charset=utf-8")

    def _discovery(self, request: Request) -> Response:
        targets = read_json(self._run.discovery_path)
        if not isinstance(targets, list):
            targets = discovery_targets(self._run.path.name, self._run.read_endpoints())
        return Response(json.dumps(targets).encode())

    def _health(self, request: Request) -> Response:
        body = {"status": "ok", "rank": self._layout.rank, "pid": os.getpid(), "step": self.recorder.step, "dropped": self.drops.total}
        return Response(to_json(body).encode())
