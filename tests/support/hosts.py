"""Two hosts on one machine: two network namespaces with a cable between them; each has its own clock and name if asked.

Needs root and a kernel with namespaces; :func:`why_no_hosts` says what is missing.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_LIMIT_S = 20.0


@dataclass
class Host:
    """One of the two.

    Args:
        name: Host name that its processes see.
        address: On the cable.
        namespace: Network namespace.
        interface: Its end of the cable.
        folder: Where its processes run: a disk of its own.
        shift_s: How far its monotonic and boot-time clocks are ahead.
    """

    name: str
    address: str
    namespace: str
    interface: str
    folder: Path
    shift_s: float = 0.0
    processes: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def start(
        self, arguments: Sequence[str], *, environment: dict[str, str] | None = None, log: str = "output.txt"
    ) -> "subprocess.Popen[bytes]":
        """Start a command on this host, in its folder, its output in ``log``."""
        inside = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', self.name, *arguments]
        if self.shift_s:
            whole, rest = divmod(self.shift_s, 1)
            assert rest == 0 or shutil.which("unshare"), "fractions are set through timens_offsets"
            inside = _in_time_namespace(self.shift_s, inside) if rest else [*_time_flags(int(whole)), *inside]
        with (self.folder / log).open("wb") as sink:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.namespace, *inside],
                cwd=self.folder,
                env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "CI": "true", **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def torchrun(
        self, script: str, *arguments: str, node: int, master: str, environment: dict[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start this host's share of a job of two hosts with one rank each, as a user does."""
        command = ["--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(node), "--master-addr", master, "--master-port", "29533"]
        return self.start(
            [sys.executable, "-m", "torch.distributed.run", *command, script, *arguments],
            environment={"GLOO_SOCKET_IFNAME": self.interface, "TP_SOCKET_IFNAME": self.interface, **(environment or {})},
        )

    def output(self, log: str = "output.txt") -> str:
        return (self.folder / log).read_text(errors="replace")

    def limit_rate(self, bits_per_second: int) -> None:
        """Let no more than so much leave this host, frames with their headers counted."""
        # The burst is small, so that a message of some tens of kilobytes already feels the limit.
        rule = f"qdisc replace dev {self.interface} root tbf rate {bits_per_second}bit burst 4kb limit 4mb"
        _run(["ip", "netns", "exec", self.namespace, "tc", *rule.split()])

    def unlimit_rate(self) -> None:
        with suppress(subprocess.CalledProcessError):
            _run(["ip", "netns", "exec", self.namespace, "tc", "qdisc", "del", "dev", self.interface, "root"])


@contextmanager
def two_hosts(folder: Path, *, shift_s: float = 0.0) -> Iterator[tuple[Host, Host]]:
    """Make two hosts with folders below ``folder``; nothing of them outlives the block.

    Args:
        folder: Where their folders go.
        shift_s: How far the second host's monotonic clock is ahead of the first's.
    """
    tag = f"{os.getpid() % 100000:x}{time.monotonic_ns() // 1000 % 4096:x}"
    hosts = [
        Host(name, f"10.213.77.{i + 1}", f"ppt-{tag}-{i}", f"pp{tag}{i}", folder / name, shift_s if i else 0.0)
        for i, name in enumerate(("node0", "node1"))
    ]
    try:
        for host in hosts:
            host.folder.mkdir(parents=True, exist_ok=True)
            _run(["ip", "netns", "add", host.namespace])
        first, second = hosts
        _run(
            [
                "ip",
                "link",
                "add",
                first.interface,
                "netns",
                first.namespace,
                "type",
                "veth",
                "peer",
                "name",
                second.interface,
                "netns",
                second.namespace,
            ]
        )
        for host in hosts:
            inside = ["ip", "-n", host.namespace]
            _run([*inside, "addr", "add", f"{host.address}/24", "dev", host.interface])
            _run([*inside, "link", "set", host.interface, "up"])
            _run([*inside, "link", "set", "lo", "up"])
        yield first, second
    finally:
        for host in hosts:
            for process in host.processes:
                _end(process)
            subprocess.run(["ip", "netns", "del", host.namespace], capture_output=True, check=False, timeout=_LIMIT_S)


def why_no_hosts(*, clocks: bool = False) -> str | None:
    """Return why this machine cannot play two hosts, or None.

    Args:
        clocks: Also with clocks of their own.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    for tool in ("ip", "tc", "unshare"):
        if shutil.which(tool) is None:
            return f"there is no {tool}, which makes the hosts"
    name = f"ppt-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False, timeout=_LIMIT_S)
    if made.returncode:
        return f"a network namespace cannot be made: {made.stderr.decode().strip()}"
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False, timeout=_LIMIT_S)
    if clocks:
        tried = subprocess.run([*_time_flags(1), "true"], capture_output=True, check=False, timeout=_LIMIT_S)
        if tried.returncode:
            return f"a time namespace cannot be made: {tried.stderr.decode().strip()}"
    return None


def _time_flags(seconds: int) -> list[str]:
    return ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(seconds), "--boottime", str(seconds)]


def _in_time_namespace(seconds: float, command: Sequence[str]) -> list[str]:
    """unshare(1) knows whole seconds only, so the offsets are written here, before the first process enters the namespace."""
    code = (
        "import os, sys\n"
        "import ctypes\n"
        "assert ctypes.CDLL(None, use_errno=True).unshare(0x80) == 0, 'unshare(CLONE_NEWTIME) failed'\n"
        "ns = round(float(sys.argv[1]) * 1e9)\n"
        "text = ''.join(f'{clock} {ns // 10**9} {ns % 10**9}\\n' for clock in ('monotonic', 'boottime'))\n"
        "open('/proc/self/timens_offsets', 'w').write(text)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    ctypes.CDLL(None).prctl(1, 9)\n"
        "    os.execvp(sys.argv[2], sys.argv[2:])\n"
        "import signal\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    return [sys.executable, "-c", code, str(seconds), *command]


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_LIMIT_S)
