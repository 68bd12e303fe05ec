"""The configuration that makes Prometheus scrape runs: which ranks there are comes from files or from rank 0, never by hand."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pptoolkit.errors import ConfigError
from pptoolkit.telemetry.pushgateway import FINAL_JOB
from pptoolkit.telemetry.run_directory import SHARED_DISCOVERY
from pptoolkit.telemetry.settings import is_http_url

JOB = "pptoolkit"
"""The job of ranks that are scraped; rules and dashboards select it."""

PROMETHEUS_PORT = 9090


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeConfig:
    """What Prometheus is to watch.

    Args:
        runs: Folder of run directories on this machine or a shared disk; None: no files are watched.
        discovery: Addresses of rank 0's service discovery, e.g. ``http://host:9100/sd``: for ranks on other machines.
        rules: Rule files.
        pushgateway: Address of a Pushgateway whose final values are scraped too.
        interval_s: Time between scrapes, and between evaluations of the rules.
        token_file: File with the token that ranks ask for; Prometheus reads it itself, so it is not written down here.
        ca: Certificates (PEM file) that ranks' certificates are checked against; None: those of the system.
        cert: Certificate (PEM file) that Prometheus shows to ranks that ask for one.
        key: Its private key.

    Raises:
        ConfigError: If nothing is watched, or an address or a path cannot be.
    """

    runs: Path | None = None
    discovery: tuple[str, ...] = ()
    rules: tuple[Path, ...] = ()
    pushgateway: str | None = None
    interval_s: int = 5
    token_file: Path | None = None
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None

    def __post_init__(self) -> None:
        if self.runs is None and not self.discovery:
            raise ConfigError("there is nothing to scrape; give a folder with --runs, or an address with --sd http://host:9100/sd")
        if self.runs is not None and "*" in str(self.runs):
            raise ConfigError(f"runs={str(self.runs)!r}: Prometheus takes no wildcard in the name of a folder; give one folder")
        for address in (*self.discovery, *([self.pushgateway] if self.pushgateway is not None else [])):
            if not is_http_url(address):
                raise ConfigError(f"{address!r} is no address; write it like http://127.0.0.1:9100/sd")
        if self.interval_s < 1:
            raise ConfigError(f"interval_s={self.interval_s} is too short; use 1 second or more")
        if (self.cert is None) != (self.key is None):
            given, missing = ("cert", "key") if self.cert is not None else ("key", "cert")
            raise ConfigError(f"{given} is given without {missing}; give both, or neither")
        for name in ("token_file", "ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(f"{name}: there is no file {path}; give a file that Prometheus can read there")

    def render(self) -> str:
        """Return the text of prometheus.yml. Every string is quoted as JSON does it, which YAML reads as it is."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# Made by `pptoolkit prometheus config`; start it with:"
        yield f"#   prometheus --config.file=prometheus.yml --web.listen-address=127.0.0.1:{PROMETHEUS_PORT}"
        yield "global:"
        yield f"  scrape_interval: {self.interval_s}s"
        yield f"  evaluation_interval: {self.interval_s}s"
        if self.rules:
            yield "rule_files:"
            yield from (f"  - {json.dumps(str(path))}" for path in self.rules)
        yield "scrape_configs:"
        yield f"  - job_name: {JOB}"
        yield f"    scrape_timeout: {max(1, self.interval_s - 1)}s"
        yield from self._credentials(indent=4)
        if self.runs is not None:
            yield "    # Each run with live ranks has a file here; it goes away with them."
            yield "    file_sd_configs:"
            yield f"      - files: [{json.dumps(str(self.runs / SHARED_DISCOVERY / '*.json'))}]"
            yield f"        refresh_interval: {self.interval_s}s"
        if self.discovery:
            yield "    # Rank 0 of a run tells where all its ranks are."
            yield "    http_sd_configs:"
            for address in self.discovery:
                yield f"      - url: {json.dumps(address)}"
                yield f"        refresh_interval: {self.interval_s}s"
                yield from self._credentials(indent=8)
        if self.pushgateway is not None:
            parts = urlsplit(self.pushgateway)
            yield f"  - job_name: {FINAL_JOB}"
            yield "    # The pushed labels are those of the ranks, not of the gateway."
            yield "    honor_labels: true"
            if parts.scheme == "https":
                yield "    scheme: https"
            if parts.path.rstrip("/"):
                yield f"    metrics_path: {json.dumps(parts.path.rstrip('/') + '/metrics')}"
            yield "    static_configs:"
            yield f"      - targets: [{json.dumps(parts.netloc)}]"

    def _credentials(self, *, indent: int) -> Iterator[str]:
        """Yield what Prometheus shows to the ranks, and to their service discovery."""
        space = " " * indent
        if self.token_file is not None:
            yield f"{space}authorization: {{credentials_file: {json.dumps(str(self.token_file))}}}"
        files = {"ca_file": self.ca, "cert_file": self.cert, "key_file": self.key}
        shown = ", ".join(f"{name}: {json.dumps(str(path))}" for name, path in files.items() if path is not None)
        if shown:
            yield f"{space}tls_config: {{{shown}}}"
