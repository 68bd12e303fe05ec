"""The run directory: where every file of a run lies, and how those that several processes write stay whole.

run.json  plan.toml  layers.arrow  suggestions.json  prometheus-sd.json
events/rank-00003.attempt-0.seg-000000.arrows    scalars/rank-00003.attempt-0.jsonl
heartbeat/rank-00003.json   endpoints/rank-00003.json   metrics/rank-00003.prom
logs/rank-00003.log         checkpoints/step-00000100/
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from pptoolkit.errors import RunError
from pptoolkit.telemetry.json_files import read_json, replace_json
from pptoolkit.telemetry.run_info import RUN_SCHEMA_VERSION, Endpoint, RunInfo

_FOLDERS = ("events", "scalars", "heartbeat", "endpoints", "metrics", "logs", "checkpoints")
_LOCK_PATIENCE_S = 5.0
SHARED_DISCOVERY = "prometheus-sd"


class RunDirectory:
    """One run's directory. Only :meth:`create` makes anything; opening a path that does not exist yet is allowed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"RunDirectory({str(self.path)!r})"

    @classmethod
    def create(cls, path: str | os.PathLike[str], info: RunInfo, *, exist_ok: bool = False) -> "RunDirectory":
        """Make the directory with its folders and run.json.

        Args:
            path: Where; parents are made.
            info: The first run.json.
            exist_ok: Continue a run that is there already; its run.json is replaced.

        Raises:
            RunError: If a run is there already, or the directory cannot be written.
        """
        run = cls(path)
        if run.exists and not exist_ok:
            raise RunError(f"there is already a run at {run.path}; choose another name, or continue it with --resume")
        try:
            for folder in _FOLDERS:
                (run.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(run.path, error) from error
        run.write_info(info)
        return run

    @property
    def exists(self) -> bool:
        return self.info_path.is_file()

    # -- where things are ------------------------------------------------------------------------------------------------

    @property
    def info_path(self) -> Path:
        return self.path / "run.json"

    @property
    def plan_path(self) -> Path:
        return self.path / "plan.toml"

    @property
    def layers_path(self) -> Path:
        return self.path / "layers.arrow"

    @property
    def suggestions_path(self) -> Path:
        return self.path / "suggestions.json"

    @property
    def discovery_path(self) -> Path:
        """Targets of all ranks in Prometheus' file_sd format."""
        return self.path / "prometheus-sd.json"

    @property
    def shared_discovery_path(self) -> Path:
        """The same targets in a folder beside the runs: Prometheus takes a wildcard only in the last part of a path."""
        place = self.path.absolute()
        return place.parent / SHARED_DISCOVERY / f"{place.name}.json"

    @property
    def events_path(self) -> Path:
        return self.path / "events"

    @property
    def scalars_folder(self) -> Path:
        return self.path / "scalars"

    @property
    def checkpoints_path(self) -> Path:
        return self.path / "checkpoints"

    def segment_path(self, rank: int, attempt: int, segment: int) -> Path:
        return self.events_path / f"rank-{rank:05d}.attempt-{attempt}.seg-{segment:06d}.arrows"

    def scalars_path(self, rank: int, attempt: int) -> Path:
        return self.scalars_folder / f"rank-{rank:05d}.attempt-{attempt}.jsonl"

    def heartbeat_path(self, rank: int) -> Path:
        return self.path / "heartbeat" / f"rank-{rank:05d}.json"

    def endpoint_path(self, rank: int) -> Path:
        return self.path / "endpoints" / f"rank-{rank:05d}.json"

    def metrics_path(self, rank: int) -> Path:
        """The last exposition of a rank, left behind when it closes."""
        return self.path / "metrics" / f"rank-{rank:05d}.prom"

    def log_path(self, rank: int) -> Path:
        return self.path / "logs" / f"rank-{rank:05d}.log"

    def checkpoint_path(self, step: int) -> Path:
        return self.checkpoints_path / f"step-{step:08d}"

    # -- run.json --------------------------------------------------------------------------------------------------------

    def read_info(self) -> RunInfo:
        """Return run.json.

        Raises:
            RunError: If it is missing, not JSON, of another schema version, or lacks what every run has.
        """
        if not self.exists:
            raise RunError(f"there is no run at {self.path} (no run.json); give the path of a run directory, e.g. runs/gpt")
        body = read_json(self.info_path)
        if not isinstance(body, dict):
            raise RunError(f"{self.info_path} is not readable JSON; restore it, or remove the run directory")
        version = body.get("schema", RUN_SCHEMA_VERSION)
        if version != RUN_SCHEMA_VERSION:
            raise RunError(f"{self.info_path} has schema {version!r}, not {RUN_SCHEMA_VERSION}; read it with the release that wrote it")
        try:
            return RunInfo.model_validate(body)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RunError(f"{self.info_path}: {where}={first['input']!r}: {first['msg']}; correct this entry") from error

    def write_info(self, info: RunInfo) -> None:
        """Replace run.json. While ranks run, use :meth:`update_info`: it loses nobody else's change.

        Raises:
            RunError: If the directory cannot be written.
        """
        try:
            replace_json(self.info_path, info.evolve(updated_unix_s=time.time()).to_dict())
        except OSError as error:
            raise _unwritable(self.info_path, error) from error

    def update_info(self, change: Callable[[RunInfo], RunInfo] | None = None, **changes: Any) -> RunInfo:
        """Change run.json under a lock that all processes of the run share.

        Args:
            change: Returns the new info from the present one.
            **changes: Fields to set after ``change``.

        Raises:
            RunError: If run.json cannot be read or written, or another process holds the lock for seconds.
        """
        with self._locked():
            info = self.read_info()
            info = change(info) if change is not None else info
            info = info.evolve(**changes)
            self.write_info(info)
            return info

    def register_endpoint(self, endpoint: Endpoint) -> None:
        """Say where a rank's metrics are: in endpoints/, in run.json, and in the file_sd file with all other ranks.

        Raises:
            RunError: If the directory cannot be written.
        """
        with self._locked():
            try:
                replace_json(self.endpoint_path(endpoint.rank), endpoint.model_dump(mode="json"))
            except OSError as error:
                raise _unwritable(self.endpoint_path(endpoint.rank), error) from error
            info = self.read_info()
            # run.json remembers where the metrics were; only the file_sd file must not name what is gone.
            by_rank = {e.rank: e for e in (*info.endpoints, *self.read_endpoints())}
            self.write_info(info.evolve(endpoints=[by_rank[rank].model_dump(mode="json") for rank in sorted(by_rank)]))
            self._write_discovery(info.run_id)

    def unregister_endpoint(self, *ranks: int) -> None:
        """Take ranks (none given: all) out of the file_sd files: another run may have their ports next.

        Raises:
            RunError: If the directory cannot be written.
        """
        with self._locked():
            for rank in ranks or [e.rank for e in self.read_endpoints()]:
                self.endpoint_path(rank).unlink(missing_ok=True)
            self._write_discovery(self.read_info().run_id)

    def _write_discovery(self, run_id: str) -> None:
        targets = discovery_targets(run_id, self.read_endpoints())
        shared = self.shared_discovery_path
        try:
            replace_json(self.discovery_path, targets)
            if targets:
                shared.parent.mkdir(exist_ok=True)
                replace_json(shared, targets)
            else:
                shared.unlink(missing_ok=True)  # years of ended runs would be years of files to watch
        except OSError as error:
            raise _unwritable(self.discovery_path, error) from error

    def read_endpoints(self) -> tuple[Endpoint, ...]:
        """Return the endpoints of all ranks that have told theirs, by rank; unreadable ones are left out."""
        found = []
        for path in sorted((self.path / "endpoints").glob("rank-*.json")):
            try:
                found.append(Endpoint.model_validate(read_json(path)))
            except ValidationError:
                continue
        return tuple(found)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock file beside run.json: locking run.json itself would lock the file that the atomic replace throws away.
        try:
            descriptor = os.open(self.path / ".run.lock", os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            deadline = time.monotonic() + _LOCK_PATIENCE_S
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if time.monotonic() > deadline:
                        raise RunError(
                            f"another process has held {self.path / '.run.lock'} for {_LOCK_PATIENCE_S:.0f} s; stop it and try again"
                        ) from error
                    time.sleep(0.01)
            yield
        finally:
            os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> RunError:
    where = f" ({error.filename})" if error.filename and str(error.filename) != str(path) else ""
    space = "free space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return RunError(f"cannot write {path}: {error.strerror or error}{where}; {space}choose a writable place with --run")


def discovery_targets(run_id: str, endpoints: tuple[Endpoint, ...]) -> list[dict[str, Any]]:
    """Return Prometheus service discovery: one group per rank, labelled with run, rank, replica and host.

    A rank that speaks HTTPS says so in the label ``__scheme__``, which Prometheus obeys.
    """
    groups = []
    for endpoint in endpoints:
        parts = urlsplit(endpoint.url)
        labels = {"run_id": run_id, "rank": str(endpoint.rank), "replica": str(endpoint.replica), "host": endpoint.host}
        if parts.scheme == "https":
            labels["__scheme__"] = "https"
        groups.append({"targets": [parts.netloc], "labels": labels})
    return groups


def list_runs(root: str | os.PathLike[str]) -> list[RunDirectory]:
    """Return the runs right below ``root`` (or ``root`` itself, if it is one), the most recently updated first."""
    base = RunDirectory(root)
    if base.exists:
        return [base]
    dated = []
    for path in base.path.glob("*/run.json"):
        try:
            dated.append((path.stat().st_mtime_ns, path.parent.name, path.parent))
        except OSError:
            continue  # removed while we looked
    return [RunDirectory(path) for *_, path in sorted(dated, reverse=True)]
