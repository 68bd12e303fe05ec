"""The Prometheus metrics of one rank. Names, types and labels are an interface: dashboards, rules and people rely on them.

No label counts steps, and every label set is known before the first step or after it, so the number of series stays
the same however long a run is. They are brought up to date when somebody
asks for them, many events at a time.
"""

import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from pptoolkit.telemetry.accounting import STATES, State, StepSplit
from pptoolkit.telemetry.drops import Reason
from pptoolkit.telemetry.event_writer import EventRows
from pptoolkit.telemetry.events import COMPUTE_OPS, Op
from pptoolkit.telemetry.hardware import HardwareSample
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.links import LinkSample
from pptoolkit.telemetry.scalars import StepSummary
from pptoolkit.telemetry.series import HistogramTable, SeriesTable

MICRO_BATCH_SERIES = 64
STAGE_OPS = (*COMPUTE_OPS, Op.RECV, Op.SEND, Op.SEND_WAIT)
RANK_OPS = (Op.REDUCE, Op.OPTIMIZER, Op.DATA, Op.CHECKPOINT, Op.EVAL)
OP_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STEP_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
STALENESS_STEPS = (0, 1, 2, 4, 8, 16, 32)
_LINK = ("src_stage", "dst_stage", "kind")
_COUNTERS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("link_bytes", "Bytes received over a link.", _LINK),
    ("link_wait_seconds", "Time blocked in receives from a link, seconds.", _LINK),
    ("link_transfer_seconds", "Time of transfers seen from both ends, without waiting, seconds.", _LINK),
    ("link_unreliable_samples", "Transfers that cannot be timed: shorter than the clocks' uncertainty allows, or between GPUs.", _LINK),
    ("samples", "Samples trained on.", ()),
    ("tokens", "Tokens trained on.", ()),
    ("steps", "Steps done.", ()),
    ("telemetry_seconds", "CPU time of writing events and bringing metrics up to date, seconds.", ()),
    ("restarts", "Restarts of the run's processes.", ()),
)
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
    ("device_power_watts", "Power that the device draws, watts.", ()),
    ("device_temperature_celsius", "Temperature of the device, degrees Celsius.", ()),
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

    Attributes:
        before_scrape: Called when somebody asks for the metrics, before the first of them is read.
    """

    def __init__(self, layout: RankLayout, *, registry: CollectorRegistry | None = None, attempt: int = 0) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self.before_scrape: Callable[[], None] = lambda: None
        self.registry.register(_Prelude(self))  # the first: a registry asks in order
        self.series = SeriesTable(self.registry)
        self._layout = layout
        self._probe_bytes: dict[Link, int] = {}
        self._dropped_before: dict[str, int] = {}
        self._last_step: EventRows = np.empty((0, 10), dtype=np.int64)
        self._declare()
        self._make_histograms()
        self.series.add("restarts", attempt)
        self.series.set("run_info", 1, layout.schedule, str(len(layout.stage_to_rank)), str(layout.micro_batches), layout.plan)
        self.series.set("schedule_bubble_ratio", layout.schedule_bubble_ratio)
        self.series.set_late("micro_batch_duration_seconds", self._micro_batch_durations)

    def _declare(self) -> None:
        links = [link.labels for link in self._layout.incoming]
        for name, documentation, labels in _GAUGES:
            self.series.gauge(name, documentation, labels)
        for name, documentation, labels in _COUNTERS:
            self.series.counter(name, documentation, labels, series=links if labels else [()])
        rank_time = "Wall time of steps by what it went to, seconds; the states sum to it."
        self.series.counter("rank_time_seconds", rank_time, ("state",), series=[(state.value,) for state in STATES])
        self.series.counter("events_dropped", "Events that were not kept.", ("reason",), series=[(reason.value,) for reason in Reason])
        traffic = "Bytes over all network interfaces of the host."
        self.series.counter("host_network_bytes", traffic, ("direction",), series=[("sent",), ("received",)])
        retries = "Times that the device's allocator found no room and freed what it had kept; out of memory is near."
        self.series.counter("allocator_retries", retries, series=())

    def _make_histograms(self) -> None:
        def histogram(name: str, documentation: str, bounds: tuple[float, ...]) -> HistogramTable:
            return HistogramTable(self.registry, name, documentation, bounds=bounds)

        self._step_duration = histogram("step_duration_seconds", "Wall time of a step, seconds.", STEP_SECONDS)
        staleness = "Optimizer steps between the weights that a gradient was computed with and those it is applied to."
        self._staleness = histogram("gradient_staleness_steps", staleness, STALENESS_STEPS)
        names: list[tuple[str, str]] = []
        # By op and stage, the place in the list; -1: another rank's stage, or an op that has no series. The column after
        # all stages stands for ops of the whole rank, which carry no stage, whatever their event says.
        stages = len(self._layout.stage_to_rank)
        self._place = np.full((256, stages + 1), -1, dtype=np.int64)
        for op in STAGE_OPS:
            for stage in self._layout.stages:
                self._place[op, stage] = len(names)
                names.append((str(stage), op.name.lower()))
        for op in RANK_OPS:
            self._place[op, stages] = len(names)
            names.append(("", op.name.lower()))
        self._ops = HistogramTable(
            self.registry,
            "op_duration_seconds",
            "Duration of an op, seconds.",
            bounds=OP_SECONDS,
            labels=("stage", "op"),
            series=names,
            example=("step", "micro_batch"),
        )

    # -- what the drain thread calls -------------------------------------------------------------------------------------

    def observe_events(self, rows: EventRows) -> int:
        """Take events in, oldest first; return how many name a stage that this rank does not have."""
        timed = rows[_HAS_SERIES[rows[:, 3]]]
        op, stage, stages = timed[:, 3], timed[:, 1], len(self._layout.stage_to_rank)
        column = np.where(_OF_RANK[op], stages, np.where((stage >= 0) & (stage < stages), stage, -1))
        place = np.where(column < 0, -1, self._place[op, column])
        known = place >= 0
        if not known.all():
            timed, place = timed[known], place[known]
        if len(timed):
            self._ops.observe(_seconds(timed), place, (timed[:, 0], timed[:, 2]))
        self._observe_received(timed[timed[:, 3] == Op.RECV])
        for _, stage, _, op, peer, start_ns, end_ns, size, *_ in rows[_TELLS_RANK[rows[:, 3]]].tolist():
            if op == Op.CLOCK:
                self.series.set("clock_offset_seconds", end_ns / 1e9)
                self.series.set("clock_uncertainty_seconds", size / 1e9)
            else:
                self._observe_probe(Link(stage, peer), size, max(0, end_ns - start_ns) / 1e9)
        return int(len(known) - known.sum())

    def observe_steps(self, steps: StepSplit, newest: EventRows) -> None:
        """Take finished steps in: their accounting, and the events of the last of them."""
        wall_ns = steps.end_ns - steps.start_ns
        self.series.add("steps", len(wall_ns))
        self._step_duration.observe(wall_ns / 1e9)
        for state, spent_ns in zip(STATES, steps.parts_ns.sum(axis=0).tolist(), strict=True):
            self.series.add("rank_time_seconds", spent_ns / 1e9, state.value)
        if wall_ns[-1] > 0:
            self.series.set("bubble_ratio", 1 - int(steps.parts_ns[-1, STATES.index(State.COMPUTE)]) / int(wall_ns[-1]))
        self.series.set("last_step_timestamp_seconds", time.time() - (time.monotonic_ns() - int(steps.end_ns[-1])) / 1e9)
        self._last_step = newest

    def observe_summary(self, summary: StepSummary) -> None:
        """Take the outcome of a step in."""
        self.series.add("samples", summary.samples)
        self.series.add("tokens", summary.tokens)
        for name in ("loss", "gradient_norm", "learning_rate"):
            value = getattr(summary, name)
            if value is not None:
                self.series.set(name, value)

    def observe_link(self, sample: LinkSample) -> None:
        """Take in what was learned of a link since the last call."""
        self.series.add("link_unreliable_samples", sample.unreliable, *sample.link.labels)
        self.series.add("link_transfer_seconds", sample.transfer_ns / 1e9, *sample.link.labels)
        if sample.newest_transfer_ns > 0:
            throughput = sample.newest_bytes / (sample.newest_transfer_ns / 1e9)
            self.series.set("link_throughput_bytes_per_second", throughput, *sample.link.labels)

    def observe_staleness(self, steps: int) -> None:
        """Take in how old the weights behind an applied gradient were, in optimizer steps."""
        self._staleness.observe(np.array([float(steps)]))

    def set_dropped(self, counts: dict[str, int]) -> None:
        """Bring the drop counters up to ``counts``."""
        for reason, count in counts.items():
            self.series.add("events_dropped", count - self._dropped_before.get(reason, 0), reason)
            self._dropped_before[reason] = count

    def observe_hardware(self, sample: HardwareSample) -> None:
        """Take a sample of the machine in."""
        self.series.set("host_cpu_ratio", sample.host_cpu_ratio)
        for name in ("device_utilization_ratio", "device_power_watts", "device_temperature_celsius"):
            value = getattr(sample, name)
            if value is not None:
                self.series.set(name, value)
        for kind, size in sample.memory_bytes.items():
            peak_of = kind.removeprefix("peak_")
            if kind == peak_of:
                self.series.set("memory_bytes", size, kind)
            self.series.set("memory_peak_bytes", max(size, self.series.get("memory_peak_bytes", peak_of) or 0), peak_of)
        for kind, size in sample.memory_limit_bytes.items():
            self.series.set("memory_limit_bytes", size, kind)
        if sample.allocator_retries is not None:
            self.series.set("allocator_retries", sample.allocator_retries)  # counted by the allocator itself
        for direction, size in sample.network_bytes.items():
            self.series.add("host_network_bytes", size, direction)

    def add_telemetry_time(self, seconds: float) -> None:
        self.series.add("telemetry_seconds", seconds)

    def _observe_probe(self, link: Link, size: int, duration_s: float) -> None:
        # A probe of latency sends little; the largest message is the one that shows the link's throughput.
        if duration_s > 0 and size >= self._probe_bytes.get(link, 1):
            self._probe_bytes[link] = size
            self.series.set("link_probe_bytes_per_second", size / duration_s, *link.labels)

    def _observe_received(self, received: EventRows) -> None:
        for link in self._layout.incoming:
            over = received[(received[:, 4] == link.src_stage) & (received[:, 1] == link.dst_stage)]
            if len(over):
                self.series.add("link_bytes", int(over[:, 7].clip(0).sum()), *link.labels)
                self.series.add("link_wait_seconds", float(_seconds(over).sum()), *link.labels)

    def _micro_batch_durations(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the series of the last step; called at a scrape, since a step that nobody asks about needs none."""
        rows, micro_batches = self._last_step, self._layout.micro_batches
        if micro_batches > MICRO_BATCH_SERIES:
            return
        own = set(self._layout.stages)
        for _, stage, micro_batch, op, _, start_ns, end_ns, *_ in rows[np.isin(rows[:, 3], COMPUTE_OPS)].tolist():
            if stage in own and 0 <= micro_batch < micro_batches:
                yield (str(stage), Op(op).name.lower(), str(micro_batch)), (end_ns - start_ns) / 1e9


class _Prelude(Collector):
    """Exports nothing; tells that the others are about to."""

    def __init__(self, metrics: RankMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        self._metrics.before_scrape()
        return iter(())


def _seconds(rows: EventRows) -> npt.NDArray[np.float64]:
    taken: npt.NDArray[np.float64] = (rows[:, 6] - rows[:, 5]).clip(0) / 1e9
    return taken


def _among(*ops: Op) -> npt.NDArray[np.bool_]:
    """Return a table that says of each op's code whether it is one of ``ops``."""
    found = np.zeros(256, dtype=bool)
    found[list(ops)] = True
    return found


_OF_RANK = _among(*RANK_OPS)
_HAS_SERIES = _among(*STAGE_OPS, *RANK_OPS)
_TELLS_RANK = _among(Op.CLOCK, Op.PROBE)
