"""Ranks that raise, die or are asked to stop: one message, last on the screen, nobody left behind, the run readable."""

import json
import signal
import socket
from pathlib import Path

import pytest

from pptoolkit.run import Run
from tests.support.jobs import started, write_job

FIRST_PORT = 19100


def losses(run: Path, rank: int) -> list[float]:
    lines = (run / "scalars" / f"rank-{rank:05d}.attempt-0.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def train(config: Path) -> tuple[str, ...]:
    return ("train", config.name, "--nproc", "2", "--run", "runs/r")


def test_an_exception_in_stage_1_ends_all_ranks_with_one_message(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=50, port=FIRST_PORT, fail_at=8 * 2 + 3)
    with started(tmp_path, *train(config)) as command:
        ended = command.end()
    assert ended.code == 1
    assert ended.last_line == "error: forward failed at rank 1, stage 1, micro-batch 3, step 2: ValueError: boom"
    assert "slow.py" in ended.output, "the layer's own traceback is shown"
    run = Run.open(tmp_path / "runs" / "r")
    assert run.info.status == "failed"
    assert run.info.attempts[-1].failed_rank == 1
    assert run.report().steps_done == 2
    assert run.timeline(steps=(2, 3))["micro_batch"].max() >= 2, "the step that failed is in the events"


def test_a_killed_rank_is_named_with_its_signal(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=5000, port=FIRST_PORT + 10)
    with started(tmp_path, *train(config)) as command:
        command.wait_for(lambda: (tmp_path / "runs/r/scalars/rank-00000.attempt-0.jsonl").exists())
        command.rank(1).kill()
        ended = command.end()
    assert ended.code == 1
    assert ended.last_line.startswith("error: rank 1 was killed by signal 9 (SIGKILL), stage 1")
    run = Run.open(tmp_path / "runs" / "r")
    assert run.info.status == "failed"
    assert "signal 9" in run.report().message
    assert run.report().steps_done >= 1


@pytest.mark.parametrize("target", ["launcher", "rank 1"])
def test_an_interrupt_stops_all_ranks_after_the_same_step(tmp_path: Path, target: str) -> None:
    config = write_job(tmp_path, steps=5000, port=FIRST_PORT + 20)
    with started(tmp_path, *train(config)) as command:
        command.wait_for(lambda: (tmp_path / "runs/r/scalars/rank-00000.attempt-0.jsonl").exists())
        (command.process if target == "launcher" else command.rank(1)).send_signal(signal.SIGINT)
        ended = command.end()
    assert ended.code == 130
    assert ended.last_line.startswith("stopped by Ctrl-C after step ")
    run = tmp_path / "runs" / "r"
    assert losses(run, 0) == losses(run, 1)
    assert Run.open(run).info.status == "stopped"


def test_ranks_do_not_outlive_a_killed_launcher(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=5000, port=FIRST_PORT + 30)
    with started(tmp_path, *train(config)) as command:
        command.wait_for(lambda: (tmp_path / "runs/r/scalars/rank-00001.attempt-0.jsonl").exists())
        command.process.kill()
        command.end()  # fails if a rank is left


def test_a_busy_metrics_port_costs_one_warning_and_no_training(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", FIRST_PORT + 40)):
        config = write_job(tmp_path, steps=4, port=FIRST_PORT + 40)
        with started(tmp_path, *train(config)) as command:
            ended = command.end()
    assert ended.code == 0
    warnings = [line for line in ended.output.splitlines() if str(FIRST_PORT + 40) in line]
    assert len(warnings) == 1
    assert len(losses(tmp_path / "runs/r", 0)) == 4


def test_nothing_listens_beyond_loopback(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=5000, port=FIRST_PORT + 50)
    with started(tmp_path, *train(config)) as command:
        command.wait_for(lambda: (tmp_path / "runs/r/scalars/rank-00000.attempt-0.jsonl").exists())
        processes = [*command.workers()]
        addresses = {c.laddr.ip for p in processes for c in p.net_connections("inet") if c.status == "LISTEN"}
        command.process.send_signal(signal.SIGINT)
        command.end()
    assert addresses <= {"127.0.0.1", "::1"}
    assert addresses


def test_losing_the_event_files_in_mid_run_changes_no_loss(tmp_path: Path) -> None:
    config = write_job(tmp_path, steps=16, port=FIRST_PORT + 60)
    events = tmp_path / "runs/r/events"
    with started(tmp_path, *train(config)) as command:
        command.wait_for(lambda: any(events.glob("*.arrows")))
        events.rename(tmp_path / "runs/r/gone")
        events.write_text("a file where the folder was")
        ended = command.end()
    assert ended.code == 0
    lost = losses(tmp_path / "runs/r", 0)
    with started(tmp_path, "train", config.name, "--nproc", "2", "--run", "runs/whole") as command:
        assert command.end().code == 0
    assert lost == losses(tmp_path / "runs/whole", 0)
