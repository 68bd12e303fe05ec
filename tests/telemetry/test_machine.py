"""Heartbeat and hardware: what is known of a rank besides its events."""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pptoolkit.telemetry import Op, Recorder, RunDirectory
from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.hardware import GpuReading, HardwareSampler, NoGpu, NvmlGpu, find_gpu
from pptoolkit.telemetry.heartbeat import Heartbeat, HeartbeatReader, read_heartbeats, take_pulse
from pptoolkit.telemetry.json_files import read_json
from pptoolkit.telemetry.periodic import Periodic


class NvmlError(Exception):
    pass


def broken(handle: object) -> object:
    raise NvmlError("GPU is lost")


def test_a_pulse_says_what_a_rank_is_in_and_since_when(run: RunDirectory) -> None:
    recorder = Recorder()
    recorder.begin_step(7)
    recorder.in_flight = (Op.RECV, 1, 3, time.monotonic_ns() - 5_000_000_000)
    take_pulse(recorder, rank=1, attempt=2, resident_bytes=5).write(run)
    (beat,) = read_heartbeats(run)
    assert (beat.rank, beat.attempt, beat.step, beat.op, beat.stage, beat.micro_batch) == (1, 2, 7, "recv", 1, 3)
    assert beat.op_seconds is not None
    assert beat.op_start_unix_s is not None
    assert beat.op_seconds >= 5
    assert beat.unix_s - beat.op_start_unix_s == pytest.approx(beat.op_seconds, abs=1)
    assert beat.resident_bytes == 5


def test_between_ops_a_pulse_names_none() -> None:
    beat = take_pulse(Recorder(), rank=0, attempt=0)
    assert (beat.op, beat.op_start_unix_s, beat.micro_batch, beat.step) == (None, None, -1, -1)


def test_damaged_heartbeats_are_left_out_and_newer_keys_passed_over(run: RunDirectory) -> None:
    Heartbeat(rank=0, unix_s=5.0).write(run)
    run.heartbeat_path(1).write_text("{half")
    run.heartbeat_path(2).write_text(json.dumps({"rank": 2, "invented_later": 1}))
    run.heartbeat_path(3).write_text(json.dumps({"unix_s": 5}))
    assert [beat.rank for beat in read_heartbeats(run)] == [0, 2]


def test_a_reader_opens_again_only_what_was_replaced_and_forgets_what_is_gone(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("pptoolkit.telemetry.heartbeat.read_json", lambda path: opened.append(Path(path).name) or read_json(path))
    for rank in (0, 1, 2):
        Heartbeat(rank=rank, step=4).write(run)
    reader = HeartbeatReader(run)
    first = reader.read()
    assert reader.read() == first
    assert len(opened) == 3
    Heartbeat(rank=1, step=5).write(run)  # as long as the one before
    run.heartbeat_path(2).unlink()
    assert [(beat.rank, beat.step) for beat in reader.read()] == [(0, 4), (1, 5)]
    assert opened[3:] == ["rank-00001.json"]
    Heartbeat(rank=2, step=6).write(run)
    assert [(beat.rank, beat.step) for beat in reader.read()] == [(0, 4), (1, 5), (2, 6)]


def test_a_successor_of_the_same_length_and_time_is_another_file(run: RunDirectory) -> None:
    reader, path = HeartbeatReader(run), run.heartbeat_path(0)
    for step in (4, 5, 6):
        Heartbeat(rank=0, step=step).write(run)
        os.utime(path, ns=(10**18, 10**18))  # a file system whose clock stands still
        assert [beat.step for beat in reader.read()] == [step]


def test_a_run_without_heartbeats_has_none(tmp_path: Path) -> None:
    assert HeartbeatReader(RunDirectory(tmp_path / "nowhere")).read() == ()


def test_a_sample_has_the_processs_memory_and_the_hosts_load() -> None:
    sampler = HardwareSampler(memory_source=lambda: {"allocated": 70, "peak_allocated": 90, "retries": 2})
    first, second = sampler.sample(), sampler.sample()
    assert first.memory_bytes["resident"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.5)
    assert (second.memory_bytes["allocated"], second.memory_bytes["peak_allocated"]) == (70, 90)
    assert (second.allocator_retries, "retries" in second.memory_bytes) == (2, False)
    assert 0 < second.memory_bytes["host"] < second.memory_limit_bytes["host"] == psutil.virtual_memory().total
    assert 0 <= second.host_cpu_ratio <= 1
    assert first.network_bytes == {"sent": 0, "received": 0}
    assert all(size >= 0 for size in second.network_bytes.values())
    assert second.device_utilization_ratio is None


def test_network_bytes_are_those_since_the_last_look(monkeypatch: pytest.MonkeyPatch) -> None:
    counters = iter([(100, 10), (160, 15), (20, 30)])  # the last one went back: an interface is gone
    monkeypatch.setattr(
        psutil, "net_io_counters", lambda: SimpleNamespace(**dict(zip(("bytes_sent", "bytes_recv"), next(counters), strict=True)))
    )
    sampler = HardwareSampler()
    assert [sampler.sample().network_bytes for _ in range(3)] == [
        {"sent": 0, "received": 0},
        {"sent": 60, "received": 5},
        {"sent": 0, "received": 15},
    ]


def test_a_gpu_is_read_through_nvml() -> None:
    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1 << 30, total=4 << 30),
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetPowerUsage=lambda handle: 310_500,
        nvmlDeviceGetTemperature=lambda handle, sensor: 66,
    )
    sample = HardwareSampler(gpu=NvmlGpu(nvml, "handle")).sample()
    assert sample.device_utilization_ratio == 0.87
    assert sample.memory_bytes["device"] == 1 << 30
    assert sample.memory_limit_bytes["device"] == 4 << 30
    assert (sample.device_power_watts, sample.device_temperature_celsius) == (310.5, 66)


def test_what_a_card_does_not_measure_is_unknown_and_the_rest_is_known() -> None:
    nvml = SimpleNamespace(
        NVMLError=NvmlError,
        NVML_TEMPERATURE_GPU=0,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=1, total=2),
        nvmlDeviceGetPowerUsage=broken,
        nvmlDeviceGetTemperature=lambda handle, sensor: 66,
    )
    reading = NvmlGpu(nvml, "handle").read()
    assert (reading.utilization_ratio, reading.power_watts, reading.temperature_celsius) == (0.87, None, 66)


def test_a_gpu_that_falls_off_the_bus_is_unknown_and_no_error() -> None:
    asked = ("UtilizationRates", "MemoryInfo", "PowerUsage")
    nvml = SimpleNamespace(NVMLError=NvmlError, NVML_TEMPERATURE_GPU=0, **{f"nvmlDeviceGet{name}": broken for name in asked})
    nvml.nvmlDeviceGetTemperature = lambda handle, sensor: broken(handle)
    sample = HardwareSampler(gpu=NvmlGpu(nvml, "handle")).sample()
    assert sample.device_utilization_ratio is None
    assert "device" not in sample.memory_bytes
    assert set(sample.memory_limit_bytes) == {"host"}


@pytest.mark.parametrize("uuid", [None, "00000000-0000-0000-0000-000000000000"])
def test_no_gpu_is_an_object_and_no_error(uuid: str | None) -> None:
    gpu = find_gpu(uuid)
    assert isinstance(gpu, NoGpu)
    assert gpu.read() == GpuReading()


def test_periodic_work_goes_on_after_a_fault_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rounds, enough = [], threading.Event()

    def work() -> None:
        rounds.append(1)
        if len(rounds) >= 5:
            enough.set()
        raise ValueError("odd")

    thread = Periodic("oddity", work, interval_s=0.01, drops=Drops(3))
    thread.start()
    assert enough.wait(20)
    assert thread.stop()
    messages = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert messages == ["rank 3: telemetry: oddity failed: ValueError: odd; please report this; training goes on"]


def test_periodic_work_is_done_at_once_when_asked_and_a_last_time_at_the_end() -> None:
    rounds: list[int] = []
    thread = Periodic("work", lambda: rounds.append(1), interval_s=3600, drops=Drops(0))
    thread.start()
    assert thread.run_now(timeout_s=20)
    done = len(rounds)
    assert thread.run_now(timeout_s=20)
    assert len(rounds) > done
    done = len(rounds)
    assert thread.stop()
    assert len(rounds) == done + 1
