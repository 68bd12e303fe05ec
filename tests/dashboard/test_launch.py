"""How the app is started."""

import importlib.util
import socket
from pathlib import Path

import pytest

from dashboard.launch import TOKEN_VARIABLE, command, environment, free_port
from pptoolkit.errors import ConfigError


def test_the_command_listens_on_loopback_and_asks_nobody_anything(tmp_path: Path) -> None:
    words = command(tmp_path, port=8512)
    for setting in (
        "--server.address=127.0.0.1",
        "--server.port=8512",
        "--server.headless=true",
        "--server.showEmailPrompt=false",
        "--browser.gatherUsageStats=false",
        "--server.fileWatcherType=none",
        "--client.toolbarMode=minimal",
    ):
        assert setting in words
    assert words[-2:] == ["--", str(tmp_path)]


def test_the_command_names_an_app_that_exists(tmp_path: Path) -> None:
    app = Path(command(tmp_path, port=8512)[4])
    assert app.is_file()
    assert importlib.util.find_spec("dashboard.app") is not None


@pytest.mark.parametrize("address", ["0.0.0.0", "192.168.1.7", "::"])
def test_an_address_that_others_can_reach_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(ConfigError, match="set a token"):
        command(tmp_path, port=8512, address=address)


def test_with_a_token_others_may_reach_it_and_the_token_is_not_in_the_command(tmp_path: Path) -> None:
    token = "a-long-enough-token"
    words = command(tmp_path, port=8512, address="0.0.0.0", token=token)
    assert "--server.address=0.0.0.0" in words
    assert not any(token in word for word in words)
    assert environment({"PATH": "/bin"}, token=token) == {"PATH": "/bin", TOKEN_VARIABLE: token}
    assert environment({TOKEN_VARIABLE: "left over"}) == {}


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can be guessed"):
        command(tmp_path, port=8512, address="0.0.0.0", token="secret")


def test_settings_of_other_streamlit_apps_do_not_leak_in() -> None:
    base = {"PATH": "/bin", "STREAMLIT_SERVER_PORT": "9", "STREAMLIT_BROWSER_GATHER_USAGE_STATS": "true"}
    assert environment(base) == {"PATH": "/bin"}


def test_a_busy_port_moves_to_the_next_free_one() -> None:
    """D12"""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = free_port(port)
        assert port < found <= port + 50
        assert free_port(found) == found


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ConfigError, match="is not a port"):
        free_port(port)
