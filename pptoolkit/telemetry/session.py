"""Telemetry of one rank: starts and ends the drain, the endpoint, the heartbeat and the hardware sampler.

Nothing here raises into training. What fails is said once and counted; the rest goes on.
"""

import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry

from pptoolkit.errors import RunError
from pptoolkit.telemetry.drain import Drain
from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.endpoint import RankEndpoint
from pptoolkit.telemetry.event_writer import EventWriter
from pptoolkit.telemetry.events import Op
from pptoolkit.telemetry.exporter import Exposition
from pptoolkit.telemetry.hardware import HardwareSample, HardwareSampler, MemorySource, find_gpu
from pptoolkit.telemetry.heartbeat import Heartbeat, take_pulse
from pptoolkit.telemetry.json_files import replace_text
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.links import LinkPairing
from pptoolkit.telemetry.metrics import RANK_OPS, STAGE_OPS, RankMetrics
from pptoolkit.telemetry.periodic import Periodic
from pptoolkit.telemetry.pushgateway import push_final
from pptoolkit.telemetry.recorder import NullRecorder, Recorder
from pptoolkit.telemetry.run_directory import RunDirectory
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
            memory_source: The engine's allocator figures by kind, bytes; called every ``hardware_s`` from another thread.
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

    @property
    def endpoint(self) -> Endpoint | None:
        """What service discovery says of this rank; None without an endpoint."""
        return None

    def add_peers(self, endpoints: Iterable[Endpoint]) -> None:
        """Tell where the other ranks serve, so that this host's service discovery names those of other hosts too."""

    def observe_staleness(self, steps: int) -> None:
        """Tell how many optimizer steps older than its target an applied gradient's weights were."""

    def flush(self, *, timeout_s: float = 5.0) -> bool:
        """Wait until everything recorded so far is on disk, and seen by the next scrape; False if that took too long."""
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
        self._last_beat: Heartbeat | None = None
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
                keep_bytes=settings.max_bytes // max(1, layout.ranks) if settings.max_bytes is not None else None,
            ),
            scalars=ScalarWriter(run, rank=layout.rank, attempt=attempt),
            metrics=self.metrics,
            drops=self.drops,
            pairing=LinkPairing(run, layout, attempt=attempt),
            keep_every=settings.every,
        )
        self._endpoint = self._start_endpoint(settings)
        self.metrics_url = f"{self._endpoint.url}/metrics" if self._endpoint is not None else None
        shared: dict[str, Any] = {"drops": self.drops, "bubbles": self.recorder.bubbles}
        self._drainer = Periodic("drain", *self._drain.parts, interval_s=settings.flush_s, share=0.001, **shared)
        self._pulse = Periodic("heartbeat", self._beat, interval_s=settings.heartbeat_s, share=0.00025, **shared)
        self._sampler = Periodic("hardware sampler", self._sample_hardware, interval_s=settings.hardware_s, share=0.00025, **shared)
        self.metrics.before_scrape = self._catch_up
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

    @property
    def endpoint(self) -> Endpoint | None:
        return self._endpoint.own if self._endpoint is not None else None

    def add_peers(self, endpoints: Iterable[Endpoint]) -> None:
        endpoint = self._endpoint
        if endpoint is not None:
            self._attempt_to("register the other hosts' endpoints", lambda: endpoint.add_peers(endpoints))

    def observe_staleness(self, steps: int) -> None:
        self.metrics.observe_staleness(steps)

    def flush(self, *, timeout_s: float = 5.0) -> bool:
        return self._drainer.run_now(timeout_s=timeout_s)

    def close(self, status: str = "finished") -> None:
        if self._closed:
            return
        self._closed = True
        self._sampler.stop()
        if self._drainer.stop():
            self._attempt_to("end the event file", self._drain.close)
        else:
            self.drops.warn_once("close", f"the last events in {self._run.path} could not be written in time; is its disk alive?")
        if self._endpoint is not None:
            self._endpoint.expect_the_end()
        self._status = status
        self._pulse.stop()
        self._attempt_to("write the final metrics", self._leave_metrics)
        if self._endpoint is not None:
            self._attempt_to("take the endpoint out of service discovery", self._endpoint.close)
        if self._settings.pushgateway is not None:
            self._push_metrics(self._settings.pushgateway)

    def _start_endpoint(self, settings: TelemetrySettings) -> RankEndpoint | None:
        if settings.port is None:
            return None
        try:
            endpoint = RankEndpoint(
                settings,
                self._run,
                self._layout,
                exposition=self._exposition,
                recorder=self.recorder,
                drops=self.drops,
                committed=self._drain.committed,
                pulse=self._take_pulse,
            )
        except (OSError, OverflowError) as error:
            self.drops.warn_once(
                "port", f"cannot serve metrics on {settings.address}:{settings.port}: {error}; choose another telemetry.port"
            )
            return None
        if endpoint.moved:
            self.drops.warn_once(
                "port", f"port {endpoint.asked_port} is busy, so metrics are at {endpoint.url}/metrics; choose another telemetry.port"
            )
        self._attempt_to("register the endpoint", lambda: self._run.register_endpoint(endpoint.own))
        return endpoint

    def _take_pulse(self) -> Heartbeat:
        sample = self._hardware_sample
        extra = {} if sample is None else {"resident_bytes": sample.memory_bytes["resident"], "host_cpu_ratio": sample.host_cpu_ratio}
        return take_pulse(
            self.recorder,
            rank=self._layout.rank,
            attempt=self._attempt,
            status=self._status,
            dropped=self.drops.total,
            dropped_by_reason={reason: count for reason, count in self.drops.counts.items() if count},
            **extra,
        )

    def _beat(self) -> None:
        self._last_beat = beat = self._take_pulse()
        self._attempt_to("write the heartbeat", lambda: beat.write(self._run))

    def _catch_up(self) -> None:
        """Bring the metrics up to date; called in the thread that asks for them."""
        self._drain.measure_for_scrape()
        now, series = self._take_pulse(), self.metrics.series
        if self._last_beat is not None:  # the time at which its thread was alive, not this one
            series.set("heartbeat_timestamp_seconds", self._last_beat.unix_s)
        for op in (*STAGE_OPS, *RANK_OPS):
            name = op.name.lower()
            series.set("inflight_op_start_timestamp_seconds", (now.op_start_unix_s or 0) if name == now.op else 0, name)
        checkpoint_ns = self._drain.last_checkpoint_ns
        if checkpoint_ns is not None:
            series.set("checkpoint_age_seconds", max(0, now.monotonic_ns - checkpoint_ns) / 1e9)

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
