"""What keeping events costs: bytes on disk, time on the training thread, time and memory to read ten million of them back.

Event files are written by the very writer of training, in batches as the drain flushes them, for four ranks.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.paired import Estimate, location
from benchmarks.report import Result, argument_parser, at_most, describe_machine, fail, measured, show, tell
from pptoolkit.errors import ConfigError, PPToolkitError
from pptoolkit.telemetry import EventReader, EventWriter, Op, Recorder, RunDirectory, RunInfo

_RANKS = 4
_BATCHES = (1000, 250)  # events per flush and rank: four thousand, and one thousand, a second
_RECORDED = 100_000
_READ_GOAL_S = 2.0
_RECORD_GOAL_US = 1.0
_MEMORY_GOAL_MIB = 512.0


def main() -> int:
    """Run the benchmark and return the exit code."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--events", type=int, help="to read back, in millions (default 10; 2 with --quick)")
    parser.add_argument("--rounds", type=int, help="at least 6 (default 12; 6 with --quick)")
    options = parser.parse_args()
    millions = options.events or (2 if options.quick else 10)
    rounds = options.rounds or (6 if options.quick else 12)
    try:
        if rounds < 6:
            raise ConfigError(f"--rounds {rounds} is too few for a 95 % interval; use 6 or more")
        tell(describe_machine())
        results = _record_costs(rounds)
        for batch in _BATCHES:
            results += _read_back(millions * 1_000_000, batch=batch, rounds=rounds)
    except PPToolkitError as error:
        return fail(error)
    show(results, as_json=options.json)
    return 0


def _record_costs(rounds: int) -> list[Result]:
    """What one ``record()`` takes: while the drain keeps up, as it does, and while it is far behind and all memory is new."""
    drained, behind = _record_cost(rounds, held=_BATCHES[0]), _record_cost(rounds, held=_RECORDED)
    what = "record one event, CPU time of the training thread"
    return [
        at_most(f"{what}, drained every {_BATCHES[0]}", drained, "us", goal=_RECORD_GOAL_US),
        measured(f"{what}, {_RECORDED:,} not drained", behind, "us"),
    ]


def _record_cost(rounds: int, *, held: int) -> Estimate:
    """Return microseconds for one ``record()``, the loop around it subtracted; after every ``held`` the events are taken away."""
    costs = []
    for _ in range(rounds):
        recorder = Recorder(capacity=held + 1)
        recorder.begin_step(0)
        record = recorder.record
        spent_ns = 0
        for _taken in range(_RECORDED // held):
            began = time.thread_time_ns()
            for m in range(held):
                record(Op.FORWARD, 1, 3, -1, m, m)
            middle = time.thread_time_ns()
            for _m in range(held):
                pass
            spent_ns += 2 * middle - began - time.thread_time_ns()
            recorder.take(held)
        costs.append(spent_ns / _RECORDED / 1e3)
    return location(costs)


def _read_back(events: int, *, batch: int, rounds: int) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="pptoolkit-store-") as name:
        run = RunDirectory.create(Path(name) / "run", RunInfo(run_id="run", ranks=_RANKS))
        tell(f"writing {events:,} events of {_RANKS} ranks, {batch} a batch")
        write_us = _write(run, events, batch)
        size = sum(path.stat().st_size for path in run.events_path.iterdir()) / events
        tell(f"reading them {rounds} times")
        seconds = []
        for _ in range(rounds):
            began = time.perf_counter()
            table = EventReader(run).read_all()
            seconds.append(time.perf_counter() - began)
            assert table.num_rows == events // (_RANKS * batch) * _RANKS * batch, "every event comes back"
            del table
        memory = _memory_of_a_scan(run)
    label = f"{events / 1e6:g} million events, {batch} a batch"
    return [
        measured(f"{label}: on disk, an event", Estimate(value=size, low=size, high=size), "bytes"),
        measured(f"{label}: write, an event, off the training thread", location(write_us), "us"),
        at_most(f"{label}: read all", location(seconds), "s", goal=_READ_GOAL_S * max(events / 1e7, 0.1)),
        at_most(f"{label}: memory of a scan", Estimate(value=memory, low=memory, high=memory), "MiB", goal=_MEMORY_GOAL_MIB),
    ]


def _write(run: RunDirectory, events: int, batch: int) -> list[float]:
    rows = np.zeros((batch, 10), dtype=np.int64)
    generator = np.random.default_rng(0)
    rows[:, 1:5] = generator.integers(0, 8, (batch, 4))
    rows[:, 5] = 10**15 + np.cumsum(generator.integers(1000, 10**6, batch))
    rows[:, 6] = rows[:, 5] + generator.integers(1000, 10**6, batch)
    costs = []
    for rank in range(_RANKS):
        writer = EventWriter(run, rank=rank)
        count = events // (_RANKS * batch)
        # In parts, so that there is a spread.
        for part in np.array_split(np.arange(count), 3):
            began = time.perf_counter()
            for step in part:
                rows[:, 0] = step
                writer.append(rows)
                writer.flush()
            costs.append((time.perf_counter() - began) / max(1, len(part) * batch) * 1e6)
        writer.close()
    return costs


_SCAN = """
import re, sys
from pathlib import Path
from pptoolkit.telemetry import EventReader, RunDirectory
def peak_kib():  # not getrusage: its peak begins with that of the process that started this one
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak_kib()
rows = sum(table.num_rows for table in EventReader(RunDirectory(sys.argv[1])).scan())
print((peak_kib() - before) / 1024)
"""


def _memory_of_a_scan(run: RunDirectory) -> float:
    """Peak resident memory, in MiB, that reading file by file adds to a fresh process; the mapped file counts."""
    done = subprocess.run([sys.executable, "-c", _SCAN, str(run.path)], check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
