"""Certificates for tests, made by openssl: a CA, a server's and a client's certificate, and a stranger's CA."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    folder: Path

    def __getattr__(self, name: str) -> str:
        return str(self.folder / f"{name}.pem")


def make_certificates(folder: Path, *, names: str = "IP:127.0.0.1,DNS:localhost") -> Certificates:
    """Make ``ca``, ``server``, ``client`` and ``other_ca`` with their ``..._key`` in ``folder``; skips where there is no openssl.

    Args:
        folder: Where.
        names: Subject alternative names of the server.
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, so there are no certificates to test with")
    for ca in ("ca", "other_ca"):
        _run(
            folder,
            f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={ca} -keyout {ca}_key.pem -out {ca}.pem",
        )
    for leaf, extension in (("server", f"subjectAltName={names}"), ("client", "extendedKeyUsage=clientAuth")):
        (folder / f"{leaf}.ext").write_text(extension)
        _run(folder, f"req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={leaf} -keyout {leaf}_key.pem -out {leaf}.csr")
        _run(folder, f"x509 -req -in {leaf}.csr -CA ca.pem -CAkey ca_key.pem -CAcreateserial -days 2 -extfile {leaf}.ext -out {leaf}.pem")
    return Certificates(folder)


def _run(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60)
