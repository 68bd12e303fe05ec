"""What is kept up to date poll by poll must be what a whole reading gives."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from pptoolkit.analysis.step_index import StepIndex
from pptoolkit.analysis.steps import step_windows
from pptoolkit.analysis.timeline import build_timeline, read_clocks
from pptoolkit.run import Run
from pptoolkit.telemetry.event_log import BLOCK_ROWS, EventLog, StepBlocks
from pptoolkit.telemetry.events import Op
from tests.analysis.events import event, table
from tests.dashboard.synthetic import SyntheticRun


def whole(step: int, rank: int, attempt: int = 0) -> dict[str, int]:
    start_ms = step + rank / 10_000
    return event(Op.STEP, start_ms, start_ms + 0.9, step=step, rank=rank, attempt=attempt)


def index_of(*polls: list[dict[str, int]], ranks: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the windows kept up to date poll by poll, and those of everything at once."""
    log, index = EventLog(), StepIndex(ranks=ranks)
    kept = pd.DataFrame()
    for rows in polls:
        events = table(rows)
        index.note(events, log.append(events))
        kept = index.windows(log.marks, read_clocks(log.marks.table))
    return kept, step_windows(build_timeline(log.events.table), ranks=ranks)


def test_a_run_read_step_by_step_says_what_it_says_when_read_at_once(tmp_path: Path) -> None:
    made = SyntheticRun(root=tmp_path, run_id="run", jitter=0.1).train(3)
    live = Run.open(made.directory.path)
    for _ in range(6):
        made.train(2)
        live.poll()
        live.usable_steps()
    once = Run.open(made.directory.path)
    pd.testing.assert_frame_equal(live.steps(), once.steps())
    pd.testing.assert_frame_equal(live.scalars(), once.scalars())
    assert live.report().to_dict() == once.report().to_dict()
    assert live.bubble_ratios(live.usable_steps()).tolist() == pytest.approx(once.bubble_ratios(once.usable_steps()).tolist())


def test_a_rank_that_comes_late_completes_the_step_that_waited_for_it() -> None:
    kept, at_once = index_of([whole(0, 0), whole(0, 1), whole(1, 0)], [whole(2, 0)], [whole(1, 1)], ranks=2)
    assert kept["complete"].tolist() == [True, True, False]
    pd.testing.assert_frame_equal(kept, at_once)


def test_a_step_that_is_repeated_after_a_restart_has_a_window_for_each_attempt() -> None:
    kept, at_once = index_of([whole(0, 0), whole(1, 0)], [whole(1, 0, attempt=1)], [whole(2, 0, attempt=1)], ranks=1)
    assert kept[["attempt", "step"]].values.tolist() == [[0, 0], [0, 1], [1, 1], [1, 2]]
    pd.testing.assert_frame_equal(kept, at_once)


def test_a_new_clock_reading_moves_the_windows_that_were_there_before() -> None:
    clock = event(Op.CLOCK, 0, 0.005, rank=1, bytes=10)
    kept, at_once = index_of([whole(0, 1)], [clock], ranks=1)
    assert kept["start_ns"].tolist() == [5_100]
    pd.testing.assert_frame_equal(kept, at_once)


def test_blocks_give_back_the_steps_that_are_asked_for_however_the_events_came() -> None:
    blocks = StepBlocks()
    random = np.random.default_rng(0)
    for _ in range(60):
        first = int(random.integers(0, 50))
        blocks.append(table([whole(step, int(random.integers(0, 4))) for step in range(first, first + int(random.integers(1, 9)))]))
    everything = blocks.table.to_pandas()
    for first, last in ((0, 3), (17, 17), (40, 90), (99, 120)):
        wanted = everything[everything["step"].between(first, last)]
        found = blocks.between(first, last).to_pandas()
        assert sorted(map(tuple, found.to_numpy().tolist())) == sorted(map(tuple, wanted.to_numpy().tolist()))


def test_a_long_run_that_is_read_at_once_is_cut_into_blocks_of_neighbouring_steps() -> None:
    many = table([whole(step, 0) for step in range(200)])
    rows = many.take(np.random.default_rng(0).integers(0, 200, 2 * BLOCK_ROWS + 5))
    blocks = StepBlocks()
    blocks.append(rows)
    assert len(blocks) == rows.num_rows
    newest = blocks.between(199, 199)
    assert newest.num_rows == int((rows["step"].to_numpy() == 199).sum())
    assert len(blocks._blocks) == 3
    assert blocks._blocks[0].last <= blocks._blocks[1].first <= blocks._blocks[2].first
