"""The Prometheus metrics of one rank. Names, types and labels are an interface: dashboards, rules and people rely on them.

No label counts steps, and every label set is known before the first step or after it, so the number of series stays
the same however long a run is. The drain thread writes them; scrapes only read.
"""

import time

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Histogram

from pptoolkit.telemetry.accounting import STATES, State
from pptoolkit.telemetry.drops import Reason
from pptoolkit.telemetry.event_writer import EventRows
from pptoolkit.telemetry.events import COMPUTE_OPS, Op
from pptoolkit.telemetry.gauges import PREFIX, GaugeTable
from pptoolkit.telemetry.hardware import HardwareSample
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.links import LinkSample
from pptoolkit.telemetry.scalars import StepSummary

MICRO_BATCH_SERIES = 64
STAGE_OPS = (*COMPUTE_OPS, Op.RECV, Op.SEND, Op.SEND_WAIT)
RANK_OPS = (Op.REDUCE, Op.OPTIMIZER, Op.DATA, Op.CHECKPOINT, Op.EVAL)
OP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
STALENESS_STEPS = (0, 1, 2, 4, 8, 16, 32)
_LINK = ("src_stage", "dst_stage", "kind")
_GAUGES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("run_info", "What runs; always 1.", ("schedule", "stages", "micro_batches", "plan")),
    ("micro_batch_duration_seconds", "Duration of each op of the last step, seconds.", ("stage", "op", "micro_batch")),
    ("bubble_ratio", "Share of the last step in which this rank did not compute, 0 to 1.", ()),
    ("schedule_bubble_ratio", "Share of a step that the schedule alone leaves idle with equal stages, 0 to 1.", ()),
    ("link_throughput_bytes_per_second", "Throughput of the last step's transfers without waiting, bytes per second.", _LINK),
    ("link_probe_bytes_per_second", "Throughput of the idle link before training, bytes per second.", _LINK),
    ("memory_bytes", "Memory in use, bytes: allocated, reserved, resident by this process; device, host by all.", ("kind",)),
    ("memory_limit_bytes", "Memory that the device or the host has, bytes.", ("kind",)),
    ("memory_peak_bytes", "Highest memory in use so far, bytes.", ("kind",)),
    ("device_utilization_ratio", "Share of time in which the device ran a kernel, 0 to 1.", ()),
    ("host_cpu_ratio", "Share of the host's CPU time in use by all processes, 0 to 1.", ()),
    ("loss", "Mean loss of the last step.", ()),
    ("gradient_norm", "Global gradient norm of the last step, before clipping.", ()),
    ("learning_rate", "Learning rate of the last step.", ()),
    ("last_step_timestamp_seconds", "Unix time at which the last step ended, seconds.", ()),
    ("heartbeat_timestamp_seconds", "Unix time of the last sign of life, seconds; goes on while training is stuck.", ()),
    ("inflight_op_start_timestamp_seconds", "Unix time at which the running op began, seconds; 0 for ops not running.", ("op",)),
    ("clock_offset_seconds", "Rank 0's clock minus this rank's, seconds.", ()),
    ("clock_uncertainty_seconds", "How far off the clock offset may be, seconds.", ()),
    ("checkpoint_age_seconds", "Time since the last checkpoint was written, seconds.", ()),
)


class RankMetrics:
    """All metrics of one rank.

    Args:
        registry: Where they are exported; default: a new one, so that several ranks can live in one process.
        layout: Stages and links of the rank.
        attempt: How often the run was restarted.
    """

    def __init__(self, layout: RankLayout, *, registry: CollectorRegistry | None = None, attempt: int = 0) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.gauges = GaugeTable(self.registry)
        for name, documentation, labels in _GAUGES:
            self.gauges.declare(name, documentation, labels)
        self._layout, self._stages = layout, frozenset(layout.stages)
        self._links = {(link.src_stage, link.dst_stage): link for link in layout.incoming}
        self._probe_bytes: dict[Link, int] = {}
        self._dropped_before: dict[str, int] = {}
        self._make_counters()
        self._make_histograms()
        self._restarts.inc(attempt)
        self.gauges.set("run_info", 1, layout.schedule, str(len(layout.stage_to_rank)), str(layout.micro_batches), layout.plan)
        self.gauges.set("schedule_bubble_ratio", layout.schedule_bubble_ratio)

    def _make_counters(self) -> None:
        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, documentation, labels, registry=self.registry)

        rank_time = counter("rank_time_seconds_total", "Wall time of steps by what it went to, seconds; the states sum to it.", "state")
        self._rank_time = {state: rank_time.labels(state.value) for state in STATES}
        link_bytes = counter("link_bytes_total", "Bytes received over a link.", *_LINK)
        wait = counter("link_wait_seconds_total", "Time blocked in receives from a link, seconds.", *_LINK)
        transfer = counter("link_transfer_seconds_total", "Time of transfers seen from both ends, without waiting, seconds.", *_LINK)
        unreliable = counter("link_unreliable_samples_total", "Transfers too short for the clocks' uncertainty to be timed.", *_LINK)
        self._link_bytes = {link: link_bytes.labels(*link.labels) for link in self._layout.incoming}
        self._link_wait = {link: wait.labels(*link.labels) for link in self._layout.incoming}
        self._link_transfer = {link: transfer.labels(*link.labels) for link in self._layout.incoming}
        self._link_unreliable = {link: unreliable.labels(*link.labels) for link in self._layout.incoming}
        self._samples = counter("samples_total", "Samples trained on.")
        self._tokens = counter("tokens_total", "Tokens trained on.")
        self._steps = counter("steps_total", "Steps done.")
        dropped = counter("events_dropped_total", "Events that were not kept.", "reason")
        self._dropped = {reason.value: dropped.labels(reason.value) for reason in Reason}
        self._telemetry = counter("telemetry_seconds_total", "CPU time of telemetry's own thread, seconds.")
        self._restarts = counter("restarts_total", "Restarts of the run's processes.")
        network = counter("host_network_bytes_total", "Bytes over all network interfaces of the host.", "direction")
        self._network = {direction: network.labels(direction) for direction in ("sent", "received")}

    def _make_histograms(self) -> None:
        self._step_duration = Histogram(
            PREFIX + "step_duration_seconds", "Wall time of a step, seconds.", buckets=STEP_SECONDS, registry=self.registry
        )
        ops = Histogram(
            PREFIX + "op_duration_seconds", "Duration of an op, seconds.", ("stage", "op"), buckets=OP_SECONDS, registry=self.registry
        )
        self._ops = {(int(op), stage): ops.labels(str(stage), op.name.lower()) for op in STAGE_OPS for stage in self._layout.stages}
        # Ops of the whole rank carry no stage, whatever their event says.
        self._ops.update({(int(op), -1): ops.labels("", op.name.lower()) for op in RANK_OPS})
        self._staleness = Histogram(
            PREFIX + "gradient_staleness_steps",
            "Optimizer steps between the weights that a gradient was computed with and those it is applied to.",
            buckets=STALENESS_STEPS,
            registry=self.registry,
        )

    # -- what the drain thread calls -------------------------------------------------------------------------------------

    def observe_events(self, rows: EventRows) -> int:
        """Take events in; return how many name a stage or a link that this rank does not have."""
        unknown = 0
        marked: set[tuple[int, int]] = set()
        # Backwards, so that the one exemplar a series gets is its newest event.
        for step, stage, micro_batch, op, peer, start_ns, end_ns, size, *_ in rows[::-1].tolist():
            duration_s = max(0, end_ns - start_ns) / 1e9
            if op in _SERIES_OPS:
                key = (op, -1 if op in _RANK_OPS else stage)
                series = self._ops.get(key)
                if series is None:
                    unknown += 1
                    continue
                if key in marked:
                    series.observe(duration_s)
                else:
                    marked.add(key)
                    series.observe(duration_s, {"step": str(step), "micro_batch": str(micro_batch)})
            if op == Op.RECV and (link := self._links.get((peer, stage))) is not None:
                self._link_bytes[link].inc(max(0, size))
                self._link_wait[link].inc(duration_s)
            elif op == Op.CLOCK:
                self.gauges.set("clock_offset_seconds", end_ns / 1e9)
                self.gauges.set("clock_uncertainty_seconds", size / 1e9)
            elif op == Op.PROBE:
                self._observe_probe(Link(stage, peer), size, duration_s)
        return unknown

    def observe_step(self, rows: EventRows, parts: dict[State, int], *, start_ns: int, end_ns: int) -> None:
        """Take a finished step in: its events, its accounting, and its start and end on the monotonic clock."""
        wall_ns = max(0, end_ns - start_ns)
        self._steps.inc()
        self._step_duration.observe(wall_ns / 1e9)
        for state, spent_ns in parts.items():
            self._rank_time[state].inc(spent_ns / 1e9)
        if wall_ns > 0:
            self.gauges.set("bubble_ratio", 1 - parts[State.COMPUTE] / wall_ns)
        self.gauges.set("last_step_timestamp_seconds", time.time() - (time.monotonic_ns() - end_ns) / 1e9)
        if self._layout.micro_batches <= MICRO_BATCH_SERIES:
            wanted = rows[np.isin(rows[:, 3], COMPUTE_OPS) & (rows[:, 2] >= 0) & (rows[:, 2] < self._layout.micro_batches)]
            for _, stage, micro_batch, op, _, start_ns, end_ns, *_ in wanted.tolist():
                if stage in self._stages:
                    labels = (str(stage), Op(op).name.lower(), str(micro_batch))
                    self.gauges.set("micro_batch_duration_seconds", (end_ns - start_ns) / 1e9, *labels)

    def observe_summary(self, summary: StepSummary) -> None:
        """Take the outcome of a step in."""
        self._samples.inc(max(0, summary.samples))
        self._tokens.inc(max(0, summary.tokens))
        for name in ("loss", "gradient_norm", "learning_rate"):
            value = getattr(summary, name)
            if value is not None:
                self.gauges.set(name, value)

    def observe_link(self, sample: LinkSample) -> None:
        """Take in what was learned of a link since the last call."""
        self._link_unreliable[sample.link].inc(sample.unreliable)
        self._link_transfer[sample.link].inc(sample.transfer_ns / 1e9)
        if sample.newest_transfer_ns > 0:
            throughput = sample.newest_bytes / (sample.newest_transfer_ns / 1e9)
            self.gauges.set("link_throughput_bytes_per_second", throughput, *sample.link.labels)

    def observe_staleness(self, steps: int) -> None:
        """Take in how old the weights behind an applied gradient were, in optimizer steps."""
        self._staleness.observe(steps)

    def set_dropped(self, counts: dict[str, int]) -> None:
        """Bring the drop counters up to ``counts``."""
        for reason, count in counts.items():
            self._dropped[reason].inc(count - self._dropped_before.get(reason, 0))
            self._dropped_before[reason] = count

    def observe_hardware(self, sample: HardwareSample) -> None:
        """Take a sample of the machine in."""
        self.gauges.set("host_cpu_ratio", sample.host_cpu_ratio)
        if sample.device_utilization_ratio is not None:
            self.gauges.set("device_utilization_ratio", sample.device_utilization_ratio)
        for kind, size in sample.memory_bytes.items():
            peak_of = kind.removeprefix("peak_")
            if kind == peak_of:
                self.gauges.set("memory_bytes", size, kind)
            self.gauges.set("memory_peak_bytes", max(size, self.gauges.get("memory_peak_bytes", peak_of) or 0), peak_of)
        for kind, size in sample.memory_limit_bytes.items():
            self.gauges.set("memory_limit_bytes", size, kind)
        for direction, size in sample.network_bytes.items():
            self._network[direction].inc(max(0, size))

    def add_telemetry_time(self, seconds: float) -> None:
        self._telemetry.inc(max(0.0, seconds))

    def _observe_probe(self, link: Link, size: int, duration_s: float) -> None:
        # A probe of latency sends little; the largest message is the one that shows the link's throughput.
        if duration_s > 0 and size >= self._probe_bytes.get(link, 1):
            self._probe_bytes[link] = size
            self.gauges.set("link_probe_bytes_per_second", size / duration_s, *link.labels)


_RANK_OPS = frozenset(int(op) for op in RANK_OPS)
_SERIES_OPS = frozenset(int(op) for op in (*STAGE_OPS, *RANK_OPS))
