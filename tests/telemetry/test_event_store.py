import os
import resource
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pptoolkit.telemetry import Event, EventReader, EventWriter, Op, RunDirectory
from pptoolkit.telemetry.event_reader import READER_SCHEMA
from pptoolkit.telemetry.event_writer import to_batch, to_rows
from pptoolkit.telemetry.events import EVENT_SCHEMA
from tests.telemetry.waiting import wait_until


def events(count: int, *, first: int = 0, op: Op = Op.FORWARD) -> list[Event]:
    return [Event(first + i, 1, i % 8, op, -1, 10**18 + i, 10**18 + i + 5, 3, 4, 1) for i in range(count)]


def steps(table: pa.Table) -> list[int]:
    values: list[int] = table["step"].to_pylist()
    return values


def write(run: RunDirectory, rank: int, *flushes: list[Event]) -> Path:
    writer = EventWriter(run, rank=rank)
    for flush in flushes:
        writer.append(flush)
        writer.flush()
    writer.close()
    assert writer.path is not None
    return writer.path


def test_events_are_read_back_exactly_with_rank_replica_and_attempt(run: RunDirectory) -> None:
    writer = EventWriter(run, rank=3, replica=1, attempt=2)
    writer.append([Event(5, -1, -1, Op.STEP, -1, -(2**62), 2**62, 2**40, 2**41, 255)])
    writer.close()
    table = EventReader(run).read_all()
    assert table.schema == READER_SCHEMA
    assert table.to_pylist() == [
        {"step": 5, "stage": -1, "micro_batch": -1, "op": 11, "peer": -1, "start_ns": -(2**62), "end_ns": 2**62, "bytes": 2**40}
        | {"memory_bytes": 2**41, "flags": 255, "rank": 3, "replica": 1, "attempt": 2}
    ]


def test_the_file_is_an_arrow_stream_that_says_what_it_is(run: RunDirectory) -> None:
    writer = EventWriter(run, rank=3, host="node7", clock_source="cuda-events")
    writer.append(events(4))
    writer.close()
    assert writer.path == run.segment_path(3, 0, 0)
    with pa.ipc.open_stream(str(writer.path)) as stream:
        assert stream.read_all().num_rows == 4
        metadata = {k.decode(): v.decode() for k, v in stream.schema.metadata.items()}
    assert metadata["pptoolkit.schema_version"] == "1"
    assert (metadata["pptoolkit.rank"], metadata["pptoolkit.host"]) == ("3", "node7")
    assert metadata["pptoolkit.clock_source"] == "cuda-events"


def test_a_reader_tails_a_writer_batch_by_batch(run: RunDirectory) -> None:
    reader = EventReader(run)
    writer = EventWriter(run, rank=0)
    assert reader.poll().num_rows == 0
    for round_ in range(5):
        writer.append(events(10, first=round_ * 10))
        assert reader.poll().num_rows == 0, "what is not flushed is not seen"
        writer.flush()
        assert steps(reader.poll()) == list(range(round_ * 10, round_ * 10 + 10))
    writer.close()
    assert reader.poll().num_rows == 0
    assert reader.skipped.files == 0
    assert EventReader(run).read_all().num_rows == 50


def test_a_reader_waits_for_the_directory_and_for_ranks_that_come_later(tmp_path: Path, run: RunDirectory) -> None:
    assert EventReader(RunDirectory(tmp_path / "not-yet")).poll().num_rows == 0
    reader = EventReader(run)
    write(run, 0, events(2))
    assert set(reader.poll()["rank"].to_pylist()) == {0}
    write(run, 4, events(3))
    assert reader.poll()["rank"].to_pylist() == [4, 4, 4]


def test_every_prefix_of_a_file_yields_its_whole_batches_and_the_rest_follows(run: RunDirectory) -> None:
    path = write(run, 0, events(3), events(3, first=3))
    whole = path.read_bytes()
    reader, seen = EventReader(run), []
    for end in range(len(whole) + 1):
        path.write_bytes(whole[:end])
        seen += steps(reader.poll())
        assert seen in ([], [0, 1, 2], [0, 1, 2, 3, 4, 5])
    assert seen == [0, 1, 2, 3, 4, 5]
    assert reader.skipped.bytes == 0


def test_kill_9_loses_at_most_what_was_not_flushed(run: RunDirectory) -> None:
    script = f"""
        import sys
        from pptoolkit.telemetry import Event, EventWriter, RunDirectory
        writer = EventWriter(RunDirectory({str(run.path)!r}), rank=0)
        step = 0
        while True:
            writer.append([Event(step, 0, 0, 0, -1, 1, 2, 0, 0, 0)])
            writer.flush()
            print(step, flush=True)
            step += 1
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = [int(process.stdout.readline()) for _ in range(200)]
    process.send_signal(signal.SIGKILL)
    told += [int(line) for line in process.stdout.read().splitlines()]
    process.wait(10)
    process.stdout.close()
    reader = EventReader(run)
    read = steps(reader.poll())
    assert read == list(range(len(read)))
    assert len(read) >= len(told)
    assert reader.skipped.bytes == 0, "a torn tail is waited for, not garbage"


def test_a_torn_tail_is_given_up_once_a_newer_attempt_writes(run: RunDirectory) -> None:
    path = write(run, 0, events(3), events(3, first=3))
    path.write_bytes(path.read_bytes()[:-40])
    reader = EventReader(run)
    assert steps(reader.poll()) == [0, 1, 2]
    assert reader.skipped.bytes == 0
    writer = EventWriter(run, rank=0, attempt=1)
    writer.append(events(1, first=9))
    writer.flush()
    assert steps(reader.poll()) == [9]
    assert reader.skipped.bytes > 0
    assert "damaged bytes were skipped" in reader.skipped.notices[0]
    assert path.name in reader.skipped.notices[0]


GARBAGE = {
    "NUL bytes": b"\x00" * 1000,
    "text": b"this is no Arrow message at all, " * 20,
    "continuation marks": b"\xff" * 64,
    "a mark with a wrong length": b"\xff\xff\xff\xff\x07\x00\x00\x00" + b"x" * 100,
    "a mark with a huge length": b"\xff\xff\xff\xff\x00\x00\x00\x7f" + b"x" * 100,
    "a mark and metadata that is none": b"\xff\xff\xff\xff\x20\x00\x00\x00" + b"\xfe" * 100,
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE.keys())
@pytest.mark.parametrize("place", ["front", "middle", "end"])
def test_garbage_is_skipped_and_counted_and_the_batches_around_it_are_read(run: RunDirectory, garbage: bytes, place: str) -> None:
    path = write(run, 0, events(3), events(3, first=3))
    whole = path.read_bytes()
    with pa.ipc.open_stream(pa.BufferReader(whole)) as stream:
        head = len(stream.schema.serialize())
        batch = (len(whole) - head - 8) // 2
    at = {"front": 0, "middle": head + batch, "end": head + 2 * batch}[place]
    path.write_bytes(whole[:at] + garbage + whole[at:])
    reader = EventReader(run)
    assert steps(reader.poll()) == [0, 1, 2, 3, 4, 5]
    assert reader.skipped.bytes == len(garbage)
    assert reader.skipped.files == 1


def test_a_file_of_nothing_but_garbage_disturbs_no_other(run: RunDirectory) -> None:
    write(run, 0, events(3))
    run.segment_path(1, 0, 0).write_bytes(os.urandom(5000).replace(b"\xff", b"\x00"))
    run.segment_path(2, 0, 0).write_bytes(b"")
    (run.events_path / "notes.txt").write_text("not an event file")
    reader = EventReader(run)
    assert set(reader.poll()["rank"].to_pylist()) == {0}
    assert (reader.skipped.bytes, reader.skipped.files) == (5000, 1)
    assert EventReader(run).read_all().num_rows == 3


def test_a_file_without_its_head_is_read_all_the_same(run: RunDirectory) -> None:
    path = write(run, 5, events(3))
    path.write_bytes(path.read_bytes()[100:])
    reader = EventReader(run)
    assert reader.poll()["rank"].to_pylist() == [5, 5, 5]
    assert reader.skipped.bytes > 0


def test_batches_after_a_live_garbage_are_found_as_they_arrive(run: RunDirectory) -> None:
    path = write(run, 0, events(2))
    message = bytes(to_batch(to_rows(events(2, first=7))[0]).serialize())
    reader = EventReader(run)
    assert reader.poll().num_rows == 2
    with path.open("ab") as file:
        for byte in b"\x00junk\xff" + message:
            file.write(bytes([byte]))
            file.flush()
            seen = steps(reader.poll())
    assert seen == [7, 8]
    assert reader.skipped.bytes == 6


def test_an_unknown_schema_version_is_a_notice_and_not_garbage(run: RunDirectory) -> None:
    schema = EVENT_SCHEMA.with_metadata({"pptoolkit.schema_version": "2"})
    with pa.OSFile(str(run.segment_path(0, 0, 0)), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(to_batch(to_rows(events(3))[0], schema))
    write(run, 1, events(1))
    reader = EventReader(run)
    assert reader.poll()["rank"].to_pylist() == [1]
    assert reader.poll().num_rows == 0
    assert reader.skipped.files == 1
    assert "event schema 2, and this release reads 1" in reader.skipped.notices[0]


def test_segments_roll_by_size_and_read_as_one(run: RunDirectory) -> None:
    writer = EventWriter(run, rank=0, segment_bytes=5000)
    reader, seen = EventReader(run), []
    for i in range(20):
        writer.append(events(20, first=i * 20))
        writer.flush()
        seen += steps(reader.poll())
    writer.close()
    assert seen == list(range(400))
    files = sorted(run.events_path.iterdir())
    assert len(files) > 3
    assert all(file.stat().st_size < 5000 + 3000 for file in files)
    assert steps(EventReader(run).read_all()) == list(range(400))


def test_a_restarted_process_of_the_same_attempt_takes_the_next_file(run: RunDirectory) -> None:
    first, second = write(run, 0, events(2)), write(run, 0, events(2, first=2))
    assert (first.name[-13:], second.name[-13:]) == ("000000.arrows", "000001.arrows")
    assert steps(EventReader(run).read_all()) == [0, 1, 2, 3]


def test_read_all_selects_steps_and_columns_but_keeps_clocks_and_probes(run: RunDirectory) -> None:
    clock = Event(-1, -1, -1, Op.CLOCK, -1, 5, 100, 9, 0, 0)
    write(run, 0, [clock, *events(10)], events(10, first=10))
    reader = EventReader(run)
    table = reader.read_all(steps=(3, 12), columns=["step", "rank", "op"])
    assert table.column_names == ["step", "rank", "op"]
    assert steps(table) == [-1, *range(3, 12)]
    assert reader.poll().num_rows == 21, "read_all does not move poll"
    assert EventReader(run, ranks=[1]).read_all().num_rows == 0
    assert EventReader(run, attempt=1).read_all().num_rows == 0


def test_a_large_file_is_mapped_and_equal_to_what_was_written(run: RunDirectory) -> None:
    rows = np.zeros((400_000, 10), dtype=np.int64)
    rows[:, 0] = np.arange(400_000)
    writer = EventWriter(run, rank=0)
    for part in np.array_split(rows, 10):
        writer.append(part)
        writer.flush()
    writer.close()
    table = EventReader(run).read_all(columns=["step"])
    assert np.array_equal(table["step"].to_numpy(), np.arange(400_000))


def test_what_is_no_event_is_refused_and_counted_and_the_rest_is_kept(run: RunDirectory) -> None:
    good = events(2)
    bad = [(1, 2), (*good[0][:-1], "x"), good[0]._replace(stage=1 << 15), good[0]._replace(start_ns=1 << 63), "text", None]
    rows, refused = to_rows([good[0], *bad, good[1]])
    assert rows.tolist() == [list(good[0]), list(good[1])]
    assert refused == len(bad)


def test_a_disk_that_fills_up_leaves_a_readable_file_and_is_used_again_when_there_is_space(run: RunDirectory) -> None:
    writer = EventWriter(run, rank=0)
    writer.append(events(10))
    writer.flush()
    assert writer.path is not None
    size = writer.path.stat().st_size
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300, old[1]))  # the next batch is cut off after 300 bytes
    try:
        writer.append(events(10, first=10))
        with pytest.raises(OSError, match="File too large"):
            writer.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert writer.path.stat().st_size == size
    writer.append(events(10, first=20))
    writer.close()
    reader = EventReader(run)
    assert steps(reader.poll()) == [*range(10), *range(20, 30)]
    assert reader.skipped.bytes == 0


def test_a_deleted_directory_is_an_error_until_it_is_back(run: RunDirectory) -> None:
    writer = EventWriter(run, rank=0)
    writer.append(events(1))
    writer.flush()
    shutil.rmtree(run.events_path)
    for _ in range(3):
        writer.append(events(1))
        with pytest.raises(FileNotFoundError):
            writer.flush()
    run.events_path.mkdir()
    writer.append(events(1, first=9))
    writer.close()
    assert steps(EventReader(run).read_all()) == [9]


def test_a_reader_in_another_process_sees_a_writer_live(run: RunDirectory) -> None:
    script = f"""
        import time
        from pptoolkit.telemetry import EventReader, RunDirectory
        reader, rows = EventReader(RunDirectory({str(run.path)!r})), 0
        while rows < 30:
            rows += reader.poll().num_rows
            time.sleep(0.01)
        print(rows)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    writer = EventWriter(run, rank=0)
    for i in range(30):
        writer.append(events(1, first=i))
        writer.flush()
    wait_until(lambda: process.poll() is not None)
    assert process.stdout is not None
    assert process.stdout.read().strip() == "30"
    process.stdout.close()
    writer.close()
