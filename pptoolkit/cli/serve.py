"""``pptoolkit dashboard``."""

import ctypes
import importlib.util
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from pptoolkit.cli.find import RUNS
from pptoolkit.cli.screen import out
from pptoolkit.errors import ConfigError

_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


def dashboard(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, or one run.")] = RUNS,
    port: Annotated[int, typer.Option(help="Port; the next free one where it is taken.", min=1, max=65535)] = 8501,
    address: Annotated[str, typer.Option(help="Where to listen; any other than loopback needs a token.")] = "127.0.0.1",
    token: Annotated[
        str, typer.Option(envvar="PPTOOLKIT_DASHBOARD_TOKEN", help="What visitors must know; better set in the environment.")
    ] = "",
) -> int:
    """Serve the dashboard on this machine: live Gantt, stages, suggestions with an Apply button."""
    if runs.is_file():
        raise ConfigError(f"{runs} is a file; name a folder of runs, e.g. {RUNS}, or one run's directory")
    if not runs.exists():
        out.print(f"there is no folder {escape(str(runs.absolute()))} yet; its runs will be shown as soon as it is there", soft_wrap=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to be ended by a service manager is like Ctrl-C
    process, url = start_dashboard(runs, port, address=address, token=token)
    if address not in ("127.0.0.1", "localhost", "::1"):
        out.print("others can reach it, and what travels is not encrypted: put a server with TLS before it where the network is not yours")
    out.print(f"dashboard: {url}  (Ctrl-C ends it)")
    try:
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        stop_dashboard(process)


def start_dashboard(runs: Path, port: int, *, address: str = "127.0.0.1", token: str = "") -> "tuple[subprocess.Popen[bytes], str]":
    """Start the dashboard as a process of its own, which ends when this one does; return it and its address.

    Raises:
        ConfigError: If Streamlit is not installed, no port is free, or others can reach ``address`` and there is no token.
    """
    if importlib.util.find_spec("streamlit") is None:
        raise ConfigError("the dashboard needs Streamlit, which is not installed; install it with: pip install 'pptoolkit[dashboard]'")
    from dashboard.launch import command, environment, free_port

    free = free_port(port, address)
    if free != port:
        out.print(f"port {port} is taken; the dashboard uses {free}")
    # Its own log says a second address and little else; errors still reach the screen.
    words = command(runs, port=free, address=address, token=token)
    process = subprocess.Popen(
        words, env=environment(token=token), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, preexec_fn=_end_with(os.getpid())
    )
    host = "localhost" if address in ("127.0.0.1", "0.0.0.0", "::1", "::") else address
    return process, f"http://{host}:{free}"


def stop_dashboard(process: "subprocess.Popen[bytes]") -> None:
    """End the dashboard and wait until it is gone."""
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _end_with(parent: int) -> Callable[[], None]:
    """Return what a child calls before it becomes another program, so that the kernel ends it when ``parent`` dies, however that was."""
    libc = ctypes.CDLL(None)  # loaded here: between fork and exec little is allowed

    def arrange() -> None:
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)  # it has died before we could say so

    return arrange
