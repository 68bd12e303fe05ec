"""``pptoolkit dashboard`` as a command: what it says at the start, and that nothing of it outlives it."""

import signal
import socket
from pathlib import Path

import pytest

from pptoolkit.cli import main
from tests.support.jobs import started


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_the_server_ends_with_the_command(tmp_path: Path, number: signal.Signals) -> None:
    with started(tmp_path, "dashboard", "nowhere", "--port", str(unused_port())) as command:
        command.wait_for(lambda: "dashboard: http" in command.output and bool(command.workers()))
        command.process.send_signal(number)
        ended = command.end()  # fails if the server is left
    assert ended.code == (0 if number == signal.SIGTERM else -signal.SIGKILL)
    assert f"there is no folder {tmp_path / 'nowhere'} yet; its runs will be shown as soon as it is there" in ended.output


def test_a_file_is_no_folder_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "plan.toml").write_text("")
    assert main.run(["dashboard", str(tmp_path / "plan.toml")]) == 2
    assert "plan.toml is a file; name a folder of runs" in " ".join(capsys.readouterr().err.split())
