"""Guards for every test: nothing it started or changed is left behind, and it cannot run for ever."""

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.ranks import KEPT_RANKS

_SLOW_TIMEOUT_S = 600
_GRACE_S = 2.0  # for what is on its way out when the test ends
# multiprocessing starts these two once and keeps them; pytest and torch write the variables.
_KEPT_PROCESSES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_KEPT_VARIABLES = frozenset({"PYTEST_CURRENT_TEST", "TORCHINDUCTOR_CACHE_DIR"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give slow tests more time, the others have the limit of pyproject.toml; skip those that need more GPUs than there are."""
    for item in items:
        gpu = item.get_closest_marker("gpu")
        if gpu is not None and (missing := _missing_gpus(*gpu.args)):
            item.add_marker(pytest.mark.skip(reason=missing))
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_TIMEOUT_S))


def _missing_gpus(wanted: int = 1) -> str:
    """Say what is missing; torch is imported only where a test asks."""
    import torch

    if torch.version.cuda is None:
        return f"needs {wanted} CUDA device{'s' if wanted > 1 else ''}; this torch ({torch.__version__}) is built without CUDA"
    there = torch.cuda.device_count()
    return f"needs {wanted} CUDA device{'s' if wanted > 1 else ''}; torch sees {there}" if there < wanted else ""


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep vocabularies and tokens that tests build out of the user's cache, and the user's out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _leave_nothing_behind(_own_cache: Path) -> Iterator[None]:
    """Put right, then report, whatever a test leaves: variables, threads, child processes, a process group.

    What a fixture of a wider scope started before the test is not the test's.
    """
    variables, threads, children = _variables(), set(threading.enumerate()), _children()
    program = sys.modules["__main__"]
    yield
    # Streamlit's AppTest puts its script there, and a process spawned later would run that script.
    sys.modules["__main__"] = program
    left = [
        *_end_process_group(),
        *_end_children(children),
        *_await_threads(threads),
        *_restore_variables(variables),
    ]
    if left:
        pytest.fail("the test left behind: " + "; ".join(left), pytrace=False)


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _KEPT_VARIABLES}


def _restore_variables(before: dict[str, str]) -> list[str]:
    now = _variables()
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    for name in changed:
        if name in before:
            os.environ[name] = before[name]
        else:
            del os.environ[name]
    return [f"environment variable {name} ({before.get(name)!r} became {now.get(name)!r})" for name in changed]


def _await_threads(before: set[threading.Thread]) -> list[str]:
    """Daemon threads end with the process, so they may stay."""
    started = [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]
    for thread in started:
        thread.join(_GRACE_S)
    return [f"thread {thread.name!r}" for thread in started if thread.is_alive()]


def _children() -> set[psutil.Process]:
    """Ranks of a pool are kept for the whole session; the pool ends them."""
    return {process for process in psutil.Process().children(recursive=True) if process.pid not in KEPT_RANKS}


def _end_children(before: set[psutil.Process]) -> list[str]:
    started = [process for process in _children() - before if not _is_kept(process)]
    _, alive = psutil.wait_procs(started, timeout=_GRACE_S) if started else ([], [])
    left = [f"process {_describe(process)}" for process in alive]
    for process in alive:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(alive, timeout=_GRACE_S)
    return left


def _is_kept(process: psutil.Process) -> bool:
    return any(name in argument for argument in _command(process) for name in _KEPT_PROCESSES)


def _describe(process: psutil.Process) -> str:
    command = " ".join(_command(process)) or "(a zombie: nobody waited for it)"
    return f"{process.pid} {command[:200]}"


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return []


def _end_process_group() -> list[str]:
    """Look only where torch was imported anyway."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return []
    distributed.destroy_process_group()
    return ["an initialised process group"]
