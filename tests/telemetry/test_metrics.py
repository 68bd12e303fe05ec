import shutil
import subprocess

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from pptoolkit.telemetry import Event, Op, Recorder, StepSummary
from pptoolkit.telemetry.accounting import split_ended_steps
from pptoolkit.telemetry.event_writer import to_rows
from pptoolkit.telemetry.exporter import Exposition
from pptoolkit.telemetry.hardware import HardwareSample
from pptoolkit.telemetry.layout import Link, RankLayout
from pptoolkit.telemetry.links import LinkSample
from pptoolkit.telemetry.metrics import RankMetrics

LAYOUT = RankLayout(rank=1, stage_to_rank=(0, 1, 2), ranks=3, micro_batches=8, schedule="1f1b", schedule_bubble_ratio=0.2, plan="cuts=2,4")
MS = 1_000_000
DESIGNED = {  # DESIGN section 6: name -> type and labels
    "run_info": ("gauge", {"schedule", "stages", "micro_batches", "plan"}),
    "step_duration_seconds": ("histogram", set()),
    "op_duration_seconds": ("histogram", {"stage", "op"}),
    "micro_batch_duration_seconds": ("gauge", {"stage", "op", "micro_batch"}),
    "rank_time_seconds_total": ("counter", {"state"}),
    "bubble_ratio": ("gauge", set()),
    "schedule_bubble_ratio": ("gauge", set()),
    "link_bytes_total": ("counter", {"src_stage", "dst_stage", "kind"}),
    "link_transfer_seconds_total": ("counter", {"src_stage", "dst_stage", "kind"}),
    "link_wait_seconds_total": ("counter", {"src_stage", "dst_stage", "kind"}),
    "link_unreliable_samples_total": ("counter", {"src_stage", "dst_stage", "kind"}),
    "link_throughput_bytes_per_second": ("gauge", {"src_stage", "dst_stage", "kind"}),
    "link_probe_bytes_per_second": ("gauge", {"src_stage", "dst_stage", "kind"}),
    "memory_bytes": ("gauge", {"kind"}),
    "memory_peak_bytes": ("gauge", {"kind"}),
    "memory_limit_bytes": ("gauge", {"kind"}),
    "device_utilization_ratio": ("gauge", set()),
    "device_power_watts": ("gauge", set()),
    "device_temperature_celsius": ("gauge", set()),
    "host_cpu_ratio": ("gauge", set()),
    "samples_total": ("counter", set()),
    "tokens_total": ("counter", set()),
    "steps_total": ("counter", set()),
    "loss": ("gauge", set()),
    "gradient_norm": ("gauge", set()),
    "learning_rate": ("gauge", set()),
    "gradient_staleness_steps": ("histogram", set()),
    "last_step_timestamp_seconds": ("gauge", set()),
    "heartbeat_timestamp_seconds": ("gauge", set()),
    "inflight_op_start_timestamp_seconds": ("gauge", {"op"}),
    "clock_offset_seconds": ("gauge", set()),
    "clock_uncertainty_seconds": ("gauge", set()),
    "events_dropped_total": ("counter", {"reason"}),
    "telemetry_seconds_total": ("counter", set()),
    "restarts_total": ("counter", set()),
    "checkpoint_age_seconds": ("gauge", set()),
}


def text_of(metrics: RankMetrics) -> str:
    return Exposition(metrics.registry).render_now().decode()


def value(metrics: RankMetrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pptoolkit_{name}", labels)


def step_events(step: int, micro_batches: int = 8) -> list[Event]:
    start = step * 1000 * MS
    rows = []
    for m in range(micro_batches):
        at = start + m * 40 * MS
        rows.append(Event(step, 1, m, Op.RECV, 0, at, at + 4 * MS, 1000, 0, 0))
        rows.append(Event(step, 1, m, Op.FORWARD, -1, at + 4 * MS, at + 14 * MS, 0, 0, 0))
        rows.append(Event(step, 1, m, Op.BACKWARD, -1, at + 14 * MS, at + 34 * MS, 0, 0, 0))
    return [*rows, Event(step, -1, -1, Op.STEP, -1, start, start + 400 * MS, 0, 0, 0)]


def observe(metrics: RankMetrics, events: list[Event]) -> int:
    rows, _ = to_rows(events)
    unknown = metrics.observe_events(rows)
    metrics.observe_steps(split_ended_steps(rows), rows[rows[:, 0] == rows[-1, 0]])
    return unknown


def fill(metrics: RankMetrics) -> None:
    """Give every metric a value."""
    observe(metrics, step_events(0))
    metrics.observe_events(to_rows([Event(0, -1, -1, Op.CLOCK, -1, 5, 3_700_000_000, 2000, 0, 0)])[0])
    metrics.observe_events(to_rows([Event(0, 1, -1, Op.PROBE, 2, 0, MS, 10_000, 0, 0)])[0])
    metrics.observe_summary(StepSummary(step=0, loss=2.5, samples=8, tokens=80, gradient_norm=1.5, learning_rate=0.1))
    metrics.observe_link(LinkSample(Link(0, 1), transfer_ns=MS, newest_transfer_ns=MS, newest_bytes=1000, unreliable=2))
    sample = {"host_cpu_ratio": 0.5, "memory_bytes": {"resident": 100, "allocated": 70, "reserved": 90}, "network_bytes": {"sent": 5}}
    gpu = {"device_utilization_ratio": 0.9, "device_power_watts": 310.0, "device_temperature_celsius": 66.0}
    metrics.observe_hardware(HardwareSample(**sample, **gpu, memory_limit_bytes={"host": 200}))
    metrics.observe_staleness(1)
    metrics.series.set("heartbeat_timestamp_seconds", 1)
    metrics.series.set("inflight_op_start_timestamp_seconds", 1, "forward")
    metrics.series.set("checkpoint_age_seconds", 1)


def test_every_designed_metric_is_there_with_its_type_labels_and_help() -> None:
    metrics = RankMetrics(LAYOUT)
    fill(metrics)
    found = {family.name: family for family in text_string_to_metric_families(text_of(metrics))}
    for name, (kind, labels) in DESIGNED.items():
        family = found[f"pptoolkit_{name}".removesuffix("_total")]
        assert family.type == kind, name
        assert family.documentation.endswith("."), name
        assert family.samples, name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == labels, name
    assert {name.removeprefix("pptoolkit_") for name in found} - {n.removesuffix("_total") for n in DESIGNED} == {
        "host_network_bytes",
        "allocator_retries",
    }


def test_promtool_finds_nothing_to_complain_about() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    metrics = RankMetrics(LAYOUT)
    fill(metrics)
    result = subprocess.run([promtool, "check", "metrics"], input=text_of(metrics), text=True, capture_output=True, timeout=30, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_step_arrives_in_counters_and_gauges() -> None:
    metrics = RankMetrics(LAYOUT, attempt=2)
    assert observe(metrics, step_events(0)) == 0
    assert value(metrics, "rank_time_seconds_total", state="compute") == pytest.approx(0.24)
    assert value(metrics, "rank_time_seconds_total", state="recv_wait") == pytest.approx(0.032)
    assert value(metrics, "rank_time_seconds_total", state="unattributed") == pytest.approx(0.128)
    assert value(metrics, "bubble_ratio") == pytest.approx(0.4)
    assert value(metrics, "schedule_bubble_ratio") == 0.2
    assert value(metrics, "steps_total") == 1
    assert value(metrics, "restarts_total") == 2
    assert value(metrics, "op_duration_seconds_count", stage="1", op="forward") == 8
    assert value(metrics, "op_duration_seconds_sum", stage="1", op="forward") == pytest.approx(0.08)
    assert value(metrics, "micro_batch_duration_seconds", stage="1", op="backward", micro_batch="7") == pytest.approx(0.02)
    link = {"src_stage": "0", "dst_stage": "1", "kind": "activation"}
    assert value(metrics, "link_bytes_total", **link) == 8000
    assert value(metrics, "link_wait_seconds_total", **link) == pytest.approx(0.032)


def test_the_states_of_rank_time_sum_to_the_steps() -> None:
    metrics = RankMetrics(LAYOUT)
    for step in range(20):
        observe(metrics, step_events(step))
    family = next(f for f in metrics.registry.collect() if f.name == "pptoolkit_rank_time_seconds")
    total = sum(s.value for s in family.samples if s.name.endswith("_total"))
    assert total == pytest.approx(value(metrics, "step_duration_seconds_sum"))


def test_the_number_of_series_is_the_same_after_1_and_after_1000_steps() -> None:
    metrics = RankMetrics(LAYOUT)
    fill(metrics)
    first = text_of(metrics).count("\n")
    for step in range(1, 1000):
        observe(metrics, step_events(step))
        metrics.observe_summary(StepSummary(step=step, loss=1.0, samples=8, tokens=8))
    assert text_of(metrics).count("\n") == first
    assert value(metrics, "steps_total") == 1000


def test_micro_batches_get_no_series_of_their_own_when_there_are_many() -> None:
    metrics = RankMetrics(RankLayout(rank=1, stage_to_rank=(0, 1, 2), ranks=3, micro_batches=65))
    observe(metrics, step_events(0, micro_batches=65))
    assert 'micro_batch="' not in text_of(metrics).replace("run_info{micro_batch", "")
    assert value(metrics, "op_duration_seconds_count", stage="1", op="forward") == 65


def test_what_is_not_known_yet_has_no_series() -> None:
    text = text_of(RankMetrics(LAYOUT))
    assert "# TYPE pptoolkit_loss gauge" in text
    for name in ("loss", "bubble_ratio", "checkpoint_age_seconds", "device_utilization_ratio", "last_step_timestamp_seconds"):
        assert f"\npptoolkit_{name} " not in text


def test_a_loss_that_is_not_finite_is_shown_as_such() -> None:
    metrics = RankMetrics(LAYOUT)
    metrics.observe_summary(StepSummary(step=0, loss=float("nan"), gradient_norm=float("inf")))
    assert "\npptoolkit_loss NaN\n" in text_of(metrics)
    assert "\npptoolkit_gradient_norm +Inf\n" in text_of(metrics)


def test_events_of_a_stage_of_another_rank_are_counted_as_wrong_and_make_no_series() -> None:
    metrics = RankMetrics(LAYOUT)
    before = text_of(metrics).count("\n")
    assert metrics.observe_events(to_rows([Event(0, 2, 0, Op.FORWARD, -1, 0, 5, 0, 0, 0)])[0]) == 1
    assert text_of(metrics).count("\n") == before


def test_the_largest_probe_is_the_links_throughput() -> None:
    metrics = RankMetrics(LAYOUT)
    for size, took in ((1000, MS), (1_000_000, 10 * MS), (8, MS)):
        metrics.observe_events(to_rows([Event(-1, 1, -1, Op.PROBE, 0, 0, took, size, 0, 0)])[0])
    assert value(metrics, "link_probe_bytes_per_second", src_stage="1", dst_stage="0", kind="gradient") == pytest.approx(1e8)


def test_memory_peaks_are_kept_and_may_come_from_the_allocator() -> None:
    metrics = RankMetrics(LAYOUT)
    for resident, peak in ((100, 900), (50, 700)):
        memory = {"resident": resident, "allocated": 10, "peak_allocated": peak}
        metrics.observe_hardware(HardwareSample(host_cpu_ratio=0.1, memory_bytes=memory, network_bytes={}))
    assert value(metrics, "memory_bytes", kind="resident") == 50
    assert value(metrics, "memory_peak_bytes", kind="resident") == 100
    assert value(metrics, "memory_peak_bytes", kind="allocated") == 900
    assert value(metrics, "memory_bytes", kind="peak_allocated") is None


def test_two_ranks_live_in_one_process_each_with_its_own_registry() -> None:
    registry = CollectorRegistry()
    one, other = RankMetrics(LAYOUT, registry=registry), RankMetrics(LAYOUT)
    assert one.registry is registry
    observe(one, step_events(0))
    assert value(one, "steps_total") == 1
    assert value(other, "steps_total") == 0


def test_openmetrics_carries_an_exemplar_per_series_that_names_the_newest_step() -> None:
    metrics = RankMetrics(LAYOUT)
    observe(metrics, step_events(0))
    observe(metrics, step_events(1))
    text = Exposition(metrics.registry).render("application/openmetrics-text; version=1.0.0").body.decode()
    marked = [line for line in text.splitlines() if 'op="forward",stage="1"' in line and " # {" in line]
    assert len(marked) == 1
    assert 'step="1"' in marked[0]
    assert text.endswith("# EOF\n")


def test_a_recorder_feeds_the_metrics_with_what_a_user_records() -> None:
    metrics, recorder = RankMetrics(LAYOUT), Recorder()
    recorder.begin_step(0)
    with recorder.span(Op.OPTIMIZER):
        pass
    recorder.end_step()
    observe(metrics, [Event(*row) for row in recorder.take(10)])
    assert value(metrics, "op_duration_seconds_count", stage="", op="optimizer") == 1
