"""One real run, scraped by one real Prometheus, for all tests of this folder."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from grafana import RULES
from pptoolkit.monitoring.scrape_config import ScrapeConfig
from pptoolkit.telemetry import Endpoint, RunDirectory, RunInfo
from pptoolkit.telemetry.exporter import Exporter, Exposition
from pptoolkit.telemetry.hardware import HardwareSample
from pptoolkit.telemetry.metrics import RankMetrics
from tests.support.jobs import Started, started
from tests.support.prometheus import Prometheus, prometheus_server
from tests.support.pushgateway import Pushgateway
from tests.support.stand_in import served, wait_until
from tests.telemetry.test_metrics import LAYOUT, fill

PORT = 19400
# Borders of 256 kB, so that a transfer takes longer than the clocks are uncertain; sleeping layers, so that the machine stays usable.
MODEL = """
import time

import torch
from torch import nn

import pptoolkit as pp


class Scale(nn.Module):
    def __init__(self, width, seconds):
        super().__init__()
        self.weight, self.seconds = nn.Parameter(torch.ones(width)), seconds

    def forward(self, x):
        time.sleep(self.seconds)
        return torch.tanh(x * self.weight)


def job(width=32768, seconds=0.002):
    x = torch.randn(64, width, generator=torch.Generator().manual_seed(0))
    layers = [pp.Layer(f"l{i}", Scale, width, seconds) for i in range(4)]
    return pp.Job(layers=layers, loss=nn.functional.mse_loss, dataset=lambda: torch.utils.data.TensorDataset(x, x.cos()))
"""
CONFIG = """
[model]
kind = "custom"
factory = "wide.py:job"
[training]
batch_size = 16
steps = {steps}
clip_norm = 1.0
[plan]
micro_batches = 8
[telemetry]
port = {port}
{extra}
"""


def write_wide_job(folder: Path, *, steps: int, port: int, extra: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wide.py").write_text(MODEL)
    (folder / "job.toml").write_text(CONFIG.format(steps=steps, port=port, extra=extra))
    return folder / "job.toml"


def train(config: Path, run: str = "runs/live") -> tuple[str, ...]:
    return ("train", config.name, "--nproc", "2", "--run", run)


@dataclass(frozen=True)
class Watched:
    """A run that goes on, the server that scrapes it, and a run that ended before, whose values lie on a Pushgateway."""

    prometheus: Prometheus
    command: Started
    runs: Path
    gateway: Pushgateway

    @property
    def live(self) -> RunDirectory:
        return RunDirectory(self.runs / "live")

    @property
    def short(self) -> RunDirectory:
        return RunDirectory(self.runs / "short")


@contextmanager
def filled_run(path: Path) -> Iterator[None]:
    """A run of one rank that has a value for everything, also for what a run on CPUs without checkpoints lacks."""
    run = RunDirectory.create(path, RunInfo(run_id=path.name))
    metrics = RankMetrics(LAYOUT)
    fill(metrics)
    metrics.observe_hardware(
        HardwareSample(
            host_cpu_ratio=0.1,
            memory_bytes={"device": 50, "allocated": 20, "reserved": 30},
            memory_limit_bytes={"device": 100},
            network_bytes={},
            device_utilization_ratio=0.9,
        )
    )
    exposition = Exposition(metrics.registry)
    exporter = Exporter({"/metrics": lambda request: exposition.render(request.headers.get("accept", ""))}, address="127.0.0.1", port=0)
    try:
        run.register_endpoint(Endpoint(rank=LAYOUT.rank, url=exporter.url, host="filled"))
        yield
    finally:
        exporter.close()


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    runs, gateway = folder / "runs", Pushgateway()
    with served(gateway) as gateway_url:
        config = ScrapeConfig(runs=runs, rules=(RULES,), pushgateway=gateway_url, interval_s=1)
        with prometheus_server(folder / "prometheus", config.render()) as prometheus:
            live = write_wide_job(folder, steps=100_000, port=PORT)
            short = write_wide_job(folder / "brief", steps=3, port=PORT + 50, extra=f'pushgateway = "{gateway_url}"')
            with (
                filled_run(runs / "filled"),
                started(folder, *train(live), limit_s=400) as command,
                started(folder / "brief", *train(short, str(runs / "short")), limit_s=200) as brief,
            ):
                assert brief.end().code == 0
                command.wait_for(lambda: (runs / "live/scalars/rank-00001.attempt-0.jsonl").exists())
                wait_until(lambda: (prometheus.value('min(pptoolkit_steps_total{run_id="live"})') or 0) > 5, what="scraped steps")
                # Two evaluations of the rules after the first rates exist.
                wait_until(
                    lambda: prometheus.query('pptoolkit:stage_compute_seconds_per_step:rate5m{run_id="live"}'), what="recorded series"
                )
                wait_until(
                    lambda: prometheus.query('pptoolkit:link_throughput_bytes_per_second:avg5m{run_id="live"}'), what="measured links"
                )
                time.sleep(2)
                yield Watched(prometheus, command, runs, gateway)
