import json
import logging
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.telemetry import Event, EventReader, NullRecorder, Op, RunDirectory, ScalarReader, StepSummary
from pptoolkit.telemetry.accounting import split_steps
from pptoolkit.telemetry.drain import UNMEASURED_EVENTS
from pptoolkit.telemetry.heartbeat import read_heartbeats
from pptoolkit.telemetry.layout import RankLayout
from pptoolkit.telemetry.session import RankTelemetry, Telemetry
from pptoolkit.telemetry.settings import TelemetrySettings
from tests.telemetry.waiting import wait_until

Start = Callable[..., RankTelemetry]


def train(telemetry: Telemetry, steps: int, *, first: int = 0, micro_batches: int = 4) -> None:
    recorder = telemetry.recorder
    for step in range(first, first + steps):
        recorder.begin_step(step)
        with recorder.span(Op.DATA):
            pass
        for m in range(micro_batches):
            with recorder.span(Op.FORWARD, stage=1, micro_batch=m):
                pass
            with recorder.span(Op.BACKWARD, stage=1, micro_batch=m):
                pass
        recorder.end_step()
        telemetry.step_done(StepSummary(step=step, loss=2.0 / (step + 1), samples=8, tokens=80, learning_rate=0.1))


def fetch(telemetry: Telemetry, path: str) -> str:
    assert telemetry.metrics_url is not None
    with urllib.request.urlopen(telemetry.metrics_url.removesuffix("/metrics") + path, timeout=20) as answer:
        text: str = answer.read().decode()
        return text


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_short_run_leaves_events_scalars_final_metrics_and_a_last_heartbeat(run: RunDirectory, start: Start) -> None:
    telemetry = start()
    train(telemetry, 3)
    telemetry.close("finished")
    events = EventReader(run).read_all()
    accounting = split_steps(events)
    assert accounting["step"].tolist() == [0, 1, 2]
    assert [row["loss"] for row in ScalarReader(run).poll()] == [2.0, 1.0, pytest.approx(2 / 3)]
    final = run.metrics_path(1).read_text()
    assert "pptoolkit_steps_total 3.0\n" in final
    assert "pptoolkit_samples_total 24.0\n" in final
    assert 'pptoolkit_op_duration_seconds_count{op="forward",stage="1"} 12.0' in final
    (beat,) = read_heartbeats(run)
    assert (beat.rank, beat.status, beat.step) == (1, "finished", 2)
    assert json.loads(run.discovery_path.read_text()) == []
    assert not any(telemetry.dropped.values())


def test_live_values_are_served_and_found_by_service_discovery(run: RunDirectory, start: Start) -> None:
    telemetry, other = start(1), start(2)
    train(telemetry, 2)
    assert telemetry.flush(timeout_s=20)
    wait_until(lambda: "pptoolkit_steps_total 2.0\n" in fetch(telemetry, "/metrics"))
    targets = json.loads(fetch(other, "/sd"))
    assert {t["labels"]["rank"]: f"http://{t['targets'][0]}/metrics" for t in targets} == {
        "1": telemetry.metrics_url,
        "2": other.metrics_url,
    }
    assert targets == json.loads(run.discovery_path.read_text())
    assert {f"{e.url}/metrics" for e in run.read_info().endpoints} == {telemetry.metrics_url, other.metrics_url}
    assert json.loads(fetch(telemetry, "/healthz"))["step"] == 1
    assert "/metrics" in fetch(telemetry, "/")


def test_a_rank_that_hangs_still_beats_and_says_where(run: RunDirectory, start: Start) -> None:
    telemetry = start()
    telemetry.recorder.begin_step(4)
    telemetry.recorder.in_flight = (Op.RECV, 1, 3, time.monotonic_ns())
    wait_until(lambda: [b.op for b in read_heartbeats(run)] == ["recv"])
    first = read_heartbeats(run)[0]
    wait_until(lambda: read_heartbeats(run)[0].monotonic_ns > first.monotonic_ns)
    (beat,) = read_heartbeats(run)
    assert (beat.step, beat.stage, beat.micro_batch) == (4, 1, 3)
    assert beat.op_start_unix_s == pytest.approx(first.op_start_unix_s, abs=1)
    ask = telemetry.metrics.registry.get_sample_value
    in_flight = ask("pptoolkit_inflight_op_start_timestamp_seconds", {"op": "recv"})
    assert in_flight == pytest.approx(beat.op_start_unix_s, abs=1)
    assert ask("pptoolkit_inflight_op_start_timestamp_seconds", {"op": "forward"}) == 0
    assert ask("pptoolkit_heartbeat_timestamp_seconds") == pytest.approx(time.time(), abs=10)
    assert ask("pptoolkit_last_step_timestamp_seconds") is None


def test_a_busy_port_is_said_once_and_the_actual_one_is_shown(run: RunDirectory, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        telemetry = start(1, settings={"port": port - 1})
        train(telemetry, 1)
        assert telemetry.flush(timeout_s=20)
        assert str(port) not in (telemetry.metrics_url or "")
        assert telemetry.metrics_url is not None
        (message,) = warnings(caplog)
        assert f"rank 1: telemetry: port {port} is busy, so metrics are at {telemetry.metrics_url}" in message
        assert f"{run.read_info().endpoints[0].url}/metrics" == telemetry.metrics_url
        assert "pptoolkit_steps_total" in fetch(telemetry, "/metrics")


def test_without_a_port_nothing_is_served(start: Start, run: RunDirectory) -> None:
    telemetry = start(settings={"port": None})
    train(telemetry, 1)
    telemetry.close()
    assert telemetry.metrics_url is None
    assert "pptoolkit_steps_total 1.0" in run.metrics_path(1).read_text()


def test_a_run_directory_that_is_deleted_costs_one_warning_and_counts(
    run: RunDirectory, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = start()
    train(telemetry, 2)
    assert telemetry.flush(timeout_s=20)
    shutil.rmtree(run.path)
    for step in range(2, 5):
        train(telemetry, 1, first=step)
        assert telemetry.flush(timeout_s=20)
    telemetry.close()
    written = [m for m in warnings(caplog) if "cannot write" in m and "events" in m]
    assert len(written) == 1
    assert "rank 1" in written[0]
    assert "free space, or restore the run directory" in written[0]
    assert telemetry.dropped["write_failed"] == 3 * (2 * 4 + 2) + 3  # events and scalar lines
    assert telemetry.metrics.registry.get_sample_value("pptoolkit_steps_total") == 5
    assert len(warnings(caplog)) == len(set(warnings(caplog)))


def test_a_run_directory_that_cannot_be_written_lets_training_go_on(tmp_path: Path, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the run directory should be")
    telemetry = start(run=RunDirectory(blocked))
    train(telemetry, 3)
    assert telemetry.flush(timeout_s=20)
    assert telemetry.dropped["write_failed"] > 0
    assert "pptoolkit_steps_total 3.0\n" in telemetry._exposition.render_now().decode()
    telemetry.close()
    assert any("Not a directory" in message for message in warnings(caplog))
    assert all("rank 1: telemetry: " in message and "training goes on" in message for message in warnings(caplog))
    assert len(warnings(caplog)) == len(set(warnings(caplog)))


def test_a_full_disk_is_counted_and_training_goes_on(run: RunDirectory, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    run.scalars_path(1, 0).symlink_to("/dev/full")
    telemetry = start()
    train(telemetry, 2)
    telemetry.close()
    assert telemetry.dropped["write_failed"] == 2
    assert any("No space left on device" in message for message in warnings(caplog))
    assert EventReader(run).read_all().num_rows == 2 * 10, "the events have their own file and are there"


def test_a_buffer_that_overflows_drops_counts_and_says_so(run: RunDirectory, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = start(settings={"buffer_events": 1024, "flush_s": 60})
    assert telemetry.flush(timeout_s=20)
    for m in range(3000):
        telemetry.recorder.record(Op.FORWARD, 1, m, -1, 0, 1)
    telemetry.close()
    dropped = telemetry.dropped["buffer_full"]
    assert dropped == 3000 - EventReader(run).read_all().num_rows > 0
    assert f'pptoolkit_events_dropped_total{{reason="buffer_full"}} {float(dropped)}' in run.metrics_path(1).read_text()
    assert sum("events come faster" in message for message in warnings(caplog)) == 1


def test_events_that_are_none_are_counted_and_the_others_kept(run: RunDirectory, start: Start, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = start()
    telemetry.recorder.begin_step(0)
    telemetry.recorder.record(Op.FORWARD, 1, 0, -1, 0, 1)
    telemetry.recorder.record(Op.FORWARD, 1, "two", -1, 0, 1)  # type: ignore[arg-type]
    telemetry.recorder.record(Op.FORWARD, 2, 0, -1, 0, 1)  # stage 2 is another rank's
    telemetry.close()
    assert telemetry.dropped["invalid"] == 2
    assert EventReader(run).read_all()["stage"].to_pylist() == [1, 2]
    assert sum("events were wrong" in message for message in warnings(caplog)) == 1


def test_sampling_keeps_every_nth_step_on_disk_and_all_steps_in_the_metrics(run: RunDirectory, start: Start) -> None:
    telemetry = start(settings={"detail": {"every": 5}})
    telemetry.add_clock(100, 5)
    train(telemetry, 12)
    telemetry.close()
    events = EventReader(run).read_all().to_pandas()
    assert sorted(events[events.op == Op.STEP].step) == [0, 5, 10]
    assert (events.op == Op.CLOCK).sum() == 1
    assert telemetry.dropped["sampling"] == 9 * 10
    assert telemetry.metrics.registry.get_sample_value("pptoolkit_steps_total") == 12
    assert len(ScalarReader(run).poll()) == 12
    assert (split_steps(EventReader(run).read_all())["compute_ns"] > 0).all()


def test_a_memory_source_that_fails_is_said_once_and_the_rest_goes_on(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> dict[str, int]:
        raise RuntimeError("CUDA is gone")

    telemetry = start(memory_source=fail)
    train(telemetry, 1)
    wait_until(lambda: any("CUDA is gone" in message for message in warnings(caplog)))
    telemetry.close()
    assert sum("CUDA is gone" in message for message in warnings(caplog)) == 1


def test_hardware_clock_checkpoint_and_staleness_reach_the_metrics(start: Start) -> None:
    telemetry = start(memory_source=lambda: {"allocated": 70, "retries": 3})
    telemetry.add_clock(3_700_000_000, 2000)
    telemetry.add_probe(stage=1, peer=2, start_ns=0, end_ns=1_000_000, bytes=10_000)
    telemetry.observe_staleness(2)
    with telemetry.recorder.span(Op.CHECKPOINT):
        pass
    ask = telemetry.metrics.registry.get_sample_value
    assert telemetry.flush(timeout_s=20)
    wait_until(lambda: ask("pptoolkit_memory_bytes", {"kind": "allocated"}) is not None)
    assert ask("pptoolkit_checkpoint_age_seconds") is not None
    assert ask("pptoolkit_allocator_retries_total") == 3
    assert ask("pptoolkit_clock_offset_seconds") == 3.7
    link = {"src_stage": "1", "dst_stage": "2", "kind": "activation"}
    assert ask("pptoolkit_link_probe_bytes_per_second", link) == 1e7
    assert ask("pptoolkit_gradient_staleness_steps_sum") == 2
    wait_until(lambda: [b.resident_bytes for b in read_heartbeats(telemetry._run)] != [None])


def test_links_between_two_ranks_are_measured_through_the_run_directory(start: Start) -> None:
    sender, receiver = start(0), start(1)
    ms, base = 1_000_000, time.monotonic_ns()
    receiver.add_clock(0, 1000)
    receiver.recorder.record_event(Event(0, 1, 0, Op.RECV, 0, base, base + 14 * ms, 4_000_000, 0, 0))
    sender.recorder.record_event(Event(0, 0, 0, Op.SEND, 1, base + 10 * ms, base + 11 * ms, 4_000_000, 0, 0))
    ask, link = receiver.metrics.registry.get_sample_value, {"src_stage": "0", "dst_stage": "1", "kind": "activation"}
    wait_until(lambda: ask("pptoolkit_link_throughput_bytes_per_second", link) is not None)
    assert ask("pptoolkit_link_throughput_bytes_per_second", link) == pytest.approx(1e9)


def test_metrics_cost_nothing_until_somebody_asks(start: Start) -> None:
    telemetry = start()
    train(telemetry, 3)
    assert telemetry.flush(timeout_s=20)
    assert telemetry.metrics.series.get("loss") is None
    assert "pptoolkit_loss 0.6666666666666666\n" in fetch(telemetry, "/metrics")
    assert telemetry.metrics.registry.get_sample_value("pptoolkit_steps_total") == 3


def test_a_scrape_in_the_middle_of_a_round_sees_steps_and_samples_of_one_moment(start: Start) -> None:
    telemetry = start(settings={"flush_s": 60})
    assert telemetry.flush(timeout_s=20)
    train(telemetry, 3)
    first, *_ = telemetry._drain.parts
    first()
    ask = telemetry.metrics.registry.get_sample_value
    assert (ask("pptoolkit_steps_total"), ask("pptoolkit_samples_total")) == (3, 24)


def test_what_nobody_asks_about_is_measured_before_it_is_too_much(start: Start) -> None:
    telemetry = start()
    train(telemetry, UNMEASURED_EVENTS // 10 + 1)
    assert telemetry.flush(timeout_s=20)
    assert (telemetry.metrics.series.get("steps") or 0) > 0
    assert telemetry.metrics.registry.get_sample_value("pptoolkit_steps_total") == UNMEASURED_EVENTS // 10 + 1


def test_who_scrapes_at_the_same_time_counts_nothing_twice(start: Start) -> None:
    telemetry = start()
    ask = telemetry.metrics.registry.get_sample_value
    threads = [threading.Thread(target=lambda: [ask("pptoolkit_steps_total") for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    train(telemetry, 300)
    for thread in threads:
        thread.join(60)
    assert telemetry.flush(timeout_s=20)
    assert ask("pptoolkit_steps_total") == 300
    assert ask("pptoolkit_op_duration_seconds_count", {"stage": "1", "op": "forward"}) == 300 * 4
    assert ask("pptoolkit_samples_total") == 300 * 8


def test_no_thread_is_left_and_close_may_be_called_twice(start: Start) -> None:
    before = {t.name for t in threading.enumerate()}
    telemetry = start()
    assert {t.name for t in threading.enumerate()} > before
    telemetry.close()
    telemetry.close("failed")
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("pptoolkit") and t.name not in before])


def test_switched_off_it_keeps_the_interface_and_writes_nothing(run: RunDirectory) -> None:
    telemetry = Telemetry.start(TelemetrySettings(enabled=False), run, RankLayout(rank=0))
    assert isinstance(telemetry.recorder, NullRecorder)
    train(telemetry, 2)
    telemetry.add_clock(1, 1)
    telemetry.add_probe(stage=0, peer=1, start_ns=0, end_ns=1, bytes=1)
    telemetry.observe_staleness(0)
    assert telemetry.flush()
    telemetry.close()
    assert (telemetry.metrics_url, dict(telemetry.dropped)) == (None, {})
    assert not any(path.is_file() for folder in ("events", "scalars", "heartbeat") for path in (run.path / folder).iterdir())


def test_training_is_not_held_up_by_a_disk_that_hangs(run: RunDirectory, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = start(settings={"buffer_events": 2000})
    hang, hung = threading.Event(), threading.Event()

    def write_and_hang(*args: Any) -> None:
        hung.set()
        hang.wait(60)

    monkeypatch.setattr(telemetry._drain._writer, "flush", write_and_hang)
    assert hung.wait(20)
    train(telemetry, 500)  # more than the buffer holds: every call returns all the same
    assert telemetry.recorder.overflowed > 0
    assert not telemetry.flush(timeout_s=0.1)
    hang.set()


def test_watching_needs_no_torch() -> None:
    code = "import sys, pptoolkit.telemetry.session; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=100).returncode == 0
