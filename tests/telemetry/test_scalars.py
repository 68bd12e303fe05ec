import json
import math
import shutil

import pytest

from pptoolkit.telemetry import RunDirectory, ScalarReader, StepSummary
from pptoolkit.telemetry.scalars import ScalarWriter


def line(step: int, **values: float) -> str:
    return StepSummary(step=step, samples=8, tokens=80, **values).to_line(step_time_s=0.5, unix_s=1000.0)


def test_a_line_is_valid_json_even_when_training_diverged() -> None:
    text = line(3, loss=float("nan"), gradient_norm=float("inf"), learning_rate=0.1)
    body = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert body == {"step": 3, "unix_s": 1000.0, "step_time_s": 0.5, "loss": "NaN", "samples": 8, "tokens": 80} | {
        "gradient_norm": "Infinity",
        "learning_rate": 0.1,
    }


def test_rows_come_back_as_numbers_with_rank_and_attempt(run: RunDirectory) -> None:
    ScalarWriter(run, rank=3, attempt=1).append([line(0, loss=float("nan")), line(1, loss=2.5)])
    first, second = ScalarReader(run).poll()
    assert (first["rank"], first["attempt"], first["step"]) == (3, 1, 0)
    assert math.isnan(first["loss"])
    assert (second["loss"], second["gradient_norm"], second["tokens"]) == (2.5, None, 80)


def test_a_reader_returns_only_whole_new_lines(run: RunDirectory) -> None:
    reader = ScalarReader(run)
    assert reader.poll() == []
    path = run.scalars_path(0, 0)
    whole = line(0) + line(1)
    for end in range(len(whole) + 1):
        path.write_text(whole[:end])
        rows = reader.poll()
        if rows:
            assert end in (len(line(0)), len(whole))
    assert reader.poll() == []
    assert reader.skipped_lines == 0


def test_damaged_lines_are_skipped_and_counted(run: RunDirectory) -> None:
    damaged = [b"\x00\x00\x00\n", b"\xff\xfe\n", b"[1]\n", b"{}\n", b'{"step": "x"}\n', b'{"step": 1, "loss": "high"}\n', b'{"step": 9\n']
    run.scalars_path(0, 0).write_bytes(line(0).encode() + b"".join(damaged) + b"\n" + line(1).encode())
    reader = ScalarReader(run)
    assert [row["step"] for row in reader.poll()] == [0, 1]
    assert reader.skipped_lines == len(damaged)


def test_an_append_that_fails_is_an_error_and_the_next_one_goes_on(run: RunDirectory) -> None:
    writer = ScalarWriter(run, rank=0)
    writer.append([line(0)])
    shutil.rmtree(run.scalars_folder)
    with pytest.raises(OSError, match="No such file"):
        writer.append([line(1)])
    run.scalars_folder.mkdir()
    writer.append([line(2)])
    assert [row["step"] for row in ScalarReader(run).poll()] == [2]
