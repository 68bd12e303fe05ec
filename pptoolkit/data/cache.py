"""A folder of finished results that several processes share: one builds, the others wait, and nobody waits for the dead.

An entry is a folder that appears by one rename, so a reader sees all of it or nothing:

    <cache>/tokens-<key>.lock          held (flock) by the process that builds; the kernel frees it when that process dies
    <cache>/.tokens-<key>.<pid>-xxxx/  being written
    <cache>/tokens-<key>/              finished
"""

import fcntl
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pptoolkit.errors import DataError

T = TypeVar("T")
LOCK_TIMEOUT_S = 300.0
_POLL_S = 0.05
_log = logging.getLogger(__name__)


def cache_directory(chosen: str | os.PathLike[str] | None = None, *, environment: Mapping[str, str] | None = None) -> Path | None:
    """Return a folder that exists and can be written, or None where there is none.

    Args:
        chosen: The folder to use. None: ``$XDG_CACHE_HOME/pptoolkit``, else ``~/.cache/pptoolkit``, else a folder of
            this user's own in the system's temporary folder.
        environment: Where XDG_CACHE_HOME and HOME are looked up; None: the process's.

    Raises:
        DataError: If ``chosen`` cannot be made or written.
    """
    if chosen is not None:
        path = Path(chosen).expanduser()
        if not _writable(path):
            raise DataError(f"the cache folder {path} cannot be written; choose another, or leave data.cache out to use the default")
        return path
    environment = os.environ if environment is None else environment
    candidates: list[Path] = []
    # The specification says that a relative XDG_CACHE_HOME is to be ignored.
    if os.path.isabs(environment.get("XDG_CACHE_HOME", "")):
        candidates.append(Path(environment["XDG_CACHE_HOME"], "pptoolkit"))
    elif os.path.isabs(environment.get("HOME", "")):
        candidates.append(Path(environment["HOME"], ".cache", "pptoolkit"))
    candidates.append(Path(tempfile.gettempdir(), f"pptoolkit-{os.getuid()}"))
    return next((path for path in candidates if _writable(path)), None)


def load_or_build(
    directory: Path | None,
    entry: str,
    *,
    load: Callable[[Path], T | None],
    build: Callable[[], T],
    save: Callable[[T, Path], None],
    lock_timeout_s: float = LOCK_TIMEOUT_S,
) -> T:
    """Return the entry, building it once however many processes ask at the same time.

    Args:
        directory: The cache folder; None: build without a cache.
        entry: The entry's name.
        load: Read an entry from its folder; None if it is incomplete or damaged, which builds it anew.
        build: Make the value.
        save: Write the value into an empty folder.
        lock_timeout_s: After waiting so long for another process, build without it.
    """
    if directory is None:
        return build()
    target = directory / entry
    value = load(target)
    if value is not None:
        return value
    with _locked(directory / f"{entry}.lock", lock_timeout_s) as alone:
        value = load(target)  # another process may have built it while this one waited
        if value is not None:
            return value
        for remains in directory.glob(f".{entry}.*") if alone else ():  # of a process that was killed while it wrote
            shutil.rmtree(remains, ignore_errors=True)
        value = build()
        try:
            _publish(target, value, save)
        except OSError as error:
            _log.warning("cannot keep %s in the cache: %s; it will be built again next time", target, error.strerror or error)
        return value


def _publish(target: Path, value: T, save: Callable[[T, Path], None]) -> None:
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.{os.getpid()}-", dir=target.parent))
    try:
        save(value, partial)
        if target.exists():  # damaged, or finished meanwhile by a process that stopped waiting for the lock: same content
            discarded = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
            target.rename(discarded / target.name)
            shutil.rmtree(discarded, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[bool]:
    """Hold the lock (True), or go on without it (False) when it cannot be had in time.

    Without it work is done twice, no more: the rename keeps entries whole.
    """
    deadline = time.monotonic() + timeout_s
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        yield False
        return
    try:
        yield _acquire(descriptor, path, deadline)
    finally:
        os.close(descriptor)  # frees the lock


def _acquire(descriptor: int, path: Path, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                _log.warning("another process holds %s for too long; going on without it", path)
                return False
            time.sleep(_POLL_S)
        except OSError:  # a file system without locks
            return False


def _writable(path: Path) -> bool:
    """Make the folder if need be; whether this user owns it and can write to it (a stranger's folder in /tmp is not trusted)."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.stat().st_uid != os.getuid() and path.parent == Path(tempfile.gettempdir()):
            return False
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False
