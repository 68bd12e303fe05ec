"""How the app is started: the command, its environment and a free port. Imports no Streamlit, so it can be asked anywhere."""

import os
import socket
import sys
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from pptoolkit.errors import ConfigError

DEFAULT_PORT = 8501
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_PORTS_TRIED = 50
TOKEN_VARIABLE = "PPTOOLKIT_DASHBOARD_TOKEN"
SHORTEST_TOKEN = 12

_SETTINGS = {
    "server.headless": "true",  # opens no browser and asks for no e-mail address
    "server.showEmailPrompt": "false",
    "server.fileWatcherType": "none",
    "server.runOnSave": "false",
    "browser.gatherUsageStats": "false",
    "logger.level": "warning",  # that the server has started is said by whoever starts it
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",  # a traceback belongs in the log, not on the page
    "client.showErrorLinks": "false",
    "theme.baseFontSize": "14",
    "theme.light.primaryColor": "#0072b2",
    "theme.light.backgroundColor": "#ffffff",
    "theme.light.secondaryBackgroundColor": "#f3f5f7",
    "theme.light.textColor": "#1f2328",
    "theme.dark.primaryColor": "#2b8fd0",
    "theme.dark.backgroundColor": "#14171b",
    "theme.dark.secondaryBackgroundColor": "#20252b",
    "theme.dark.textColor": "#e6e8eb",
}


def command(runs: Path, *, port: int, address: str = "127.0.0.1", token: str = "") -> list[str]:
    """Return the command that serves the dashboard for the runs below ``runs``; start it with :func:`environment`.

    Args:
        runs: Folder of run directories, or one run directory; need not exist yet.
        port: A free port, e.g. from :func:`free_port`.
        address: Where to listen.
        token: What a visitor must know; needed where others can reach ``address``. It goes to the app by :func:`environment`.

    Raises:
        ConfigError: If ``address`` can be reached from other machines and there is no token, or a short one.
    """
    if address not in _LOOPBACK and not token:
        raise ConfigError(
            f"address={address!r} would show the runs to everyone who reaches this machine; set a token that visitors must know, "
            f"with --token or {TOKEN_VARIABLE}, or use 127.0.0.1 and an SSH tunnel: ssh -L 8501:127.0.0.1:8501 HOST"
        )
    if token and len(token) < SHORTEST_TOKEN:
        raise ConfigError(
            f"a token of {len(token)} characters can be guessed; use {SHORTEST_TOKEN} or more, for example: "
            'python -c "import secrets; print(secrets.token_urlsafe())"'
        )
    app = files("dashboard").joinpath("app.py")
    settings = {**_SETTINGS, "server.port": str(port), "server.address": address}
    options = [f"--{name}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "streamlit", "run", str(app), *options, "--", str(runs)]


def environment(base: Mapping[str, str] | None = None, *, token: str = "") -> dict[str, str]:
    """Return the environment for :func:`command`: ``base`` (default: this process's) without settings that would change the app.

    The token travels here and not in the command, which every user of the machine can read.
    """
    kept = {name: value for name, value in (os.environ if base is None else base).items() if not name.startswith("STREAMLIT_")}
    kept.pop(TOKEN_VARIABLE, None)
    return {**kept, TOKEN_VARIABLE: token} if token else kept


def free_port(port: int = DEFAULT_PORT, address: str = "127.0.0.1") -> int:
    """Return ``port``, or the next one that is free; say so to the person when it differs.

    Raises:
        ConfigError: If ``port`` is no port, or all of the next ones are taken too.
    """
    if not 1 <= port <= 65535:
        raise ConfigError(f"port={port} is not a port; use 1 to 65535, e.g. --port {DEFAULT_PORT}")
    last = min(port + _PORTS_TRIED, 65536)
    for candidate in range(port, last):
        if _is_free(candidate, address):
            return candidate
    raise ConfigError(f"ports {port} to {last - 1} are all in use on {address}; stop one of their owners, or choose another with --port")


def _is_free(port: int, address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As servers do: a port whose last connections are still closing counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True
