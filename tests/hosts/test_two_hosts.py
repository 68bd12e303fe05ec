"""A job on two hosts that share no disk and no clock, started by torchrun, copied by ``pptoolkit collect``."""

import os
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from pptoolkit.analysis.links import pair_messages
from pptoolkit.run import Run
from tests.support import two_host_job
from tests.support.hosts import Host, two_hosts, why_no_hosts

TOKEN = "0123456789abcdef-secret"
ENVIRONMENT = {"PPTOOLKIT_TOKEN": TOKEN}
LIMIT_S = 150.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif((reason := why_no_hosts(clocks=True)) is not None, reason=reason or ""),
]


def train(hosts: tuple[Host, Host], *, steps: int, width: int = 4096, environment: dict[str, str] | None = None) -> None:
    for node, host in enumerate(hosts):
        host.torchrun(
            two_host_job.__file__,
            str(steps),
            str(width),
            node=node,
            master=hosts[0].address,
            environment={**ENVIRONMENT, **(environment or {})},
        )


def collect(host: Host, desk: Path, *arguments: str, scheme: str = "http") -> None:
    command = [
        sys.executable,
        "-m",
        "pptoolkit",
        "collect",
        f"{scheme}://{host.address}:9100",
        "-o",
        str(desk),
        "--interval",
        "0.2",
        "--patience",
        "120",
        *arguments,
    ]
    host.start(command, environment=ENVIRONMENT, log="collect.txt")


def end(*hosts: Host) -> None:
    """Wait for everything that was started; all of it must end well."""
    deadline = time.monotonic() + LIMIT_S
    for host in hosts:
        for process in host.processes:
            code = process.wait(max(1.0, deadline - time.monotonic()))
            assert code == 0, "\n".join(path.read_text() for h in hosts for path in h.folder.glob("*.txt"))


def messages(run: Run) -> pd.DataFrame:
    timeline = run.timeline()
    return pair_messages(timeline, uncertainty_ns={})


@pytest.mark.parametrize("shift_s", [3600.0, 3.7], ids=["an hour", "3.7 s"])
def test_two_hosts_without_a_shared_disk_or_clock_become_one_timeline(tmp_path: Path, shift_s: float) -> None:
    desk = tmp_path / "desk"
    with two_hosts(tmp_path, shift_s=shift_s) as hosts:
        train(hosts, steps=60)
        collect(hosts[0], desk)
        end(*hosts)
    # Every host wrote its own ranks' files and nothing else.
    for rank, host in enumerate(hosts):
        assert {path.name[:10] for path in (host.folder / "runs/two/events").iterdir()} == {f"rank-{rank:05d}"}
        here = Run.open(host.folder / "runs/two")
        assert (here.info.status, here.info.hosts) == ("finished", ("node0", "node1"))
    run = Run.open(desk)
    report = run.report()
    assert (report.state, report.steps_done, report.missing) == ("finished", 60, ())
    # No receive ends before its send starts.
    pairs = messages(run)
    assert len(pairs) == 60 * 4 * 2
    assert (pairs["recv_end_ns"] > pairs["send_start_ns"]).all()
    # The offset is reported with its uncertainty, and holds the truth.
    (clock,) = [clock for clock in report.clocks if clock.rank == 1]
    assert abs(clock.offset_s + shift_s) <= clock.uncertainty_s < 0.01
    assert clock.readings >= 3, "the clocks were compared again and again"


def test_mutual_tls_and_a_token_between_hosts(tmp_path: Path) -> None:
    from tests.support.certificates import make_certificates

    (tmp_path / "pki").mkdir()
    pem = make_certificates(tmp_path / "pki", names="IP:10.213.77.1,IP:10.213.77.2")
    lock = {"JOB_TLS_CERT": pem.server, "JOB_TLS_KEY": pem.server_key, "JOB_TLS_CLIENT_CA": pem.ca}
    desk = tmp_path / "desk"
    with two_hosts(tmp_path) as hosts:
        train(hosts, steps=20, environment=lock)
        collect(hosts[0], desk, "--ca", pem.ca, "--cert", pem.client, "--key", pem.client_key, scheme="https")
        end(*hosts)
    assert Run.open(desk).report().steps_done == 20
    assert TOKEN not in "".join(path.read_text(errors="replace") for path in tmp_path.rglob("run.json")), os.fspath(tmp_path)


def test_reported_throughput_follows_the_links_limit_activation_and_gradient_apart(tmp_path: Path) -> None:
    bits = {(0, 1): 160_000_000, (1, 0): 80_000_000}
    desk = tmp_path / "desk"
    with two_hosts(tmp_path) as hosts:
        hosts[0].limit_rate(bits[0, 1])
        hosts[1].limit_rate(bits[1, 0])
        train(hosts, steps=40, width=8192)
        collect(hosts[0], desk)
        end(*hosts)
    links = {(link.src_stage, link.dst_stage): link for link in Run.open(desk).report().links}
    assert {direction: link.kind for direction, link in links.items()} == {(0, 1): "activation", (1, 0): "gradient"}
    speeds = {}
    for direction, link in links.items():
        limit = bits[direction] / 8
        assert link.bytes_per_message == two_host_job.ROWS * 8192 * 4
        assert link.throughput is not None
        assert link.samples + link.unreliable + link.unblocked == link.messages
        # Headers take their part of the limit; a busy machine takes more.
        assert 0.5 * limit < link.throughput.median < 1.05 * limit, (direction, link)
        assert link.probe_bytes_per_second is not None
        assert 0.5 * limit < link.probe_bytes_per_second < 1.2 * limit, (direction, link)
        speeds[direction] = link.throughput.median
    assert 1.4 < speeds[0, 1] / speeds[1, 0] < 2.8
