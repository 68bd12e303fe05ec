"""A run as one file, and its events for other programs."""

import base64
import json
import re
from pathlib import Path

import pandas as pd
import pytest

from dashboard.page_file import page_text, write_page
from dashboard.wire import decode_groups
from pptoolkit.analysis.exports import named_ops, trace_events, write_csv, write_parquet, write_perfetto
from pptoolkit.errors import RunError
from pptoolkit.run import Run
from pptoolkit.telemetry.events import Op
from tests.dashboard.synthetic import SyntheticRun, gpt_layers


def test_the_file_holds_the_timeline_and_the_report_and_asks_no_network(tmp_path: Path) -> None:
    made = SyntheticRun(root=tmp_path, run_id="run").train(8).finish()
    write_page(Run.open(made.directory.path), tmp_path / "out" / "run.html")
    text = (tmp_path / "out" / "run.html").read_text()
    assert not re.search(r"(?:src|href|url\()\s*=?\s*[\"']?(?:https?:)?//", text)
    assert "default-src 'none'" in text
    found = re.search(r'atob\("([^"]+)"\)', text)
    assert found
    header, groups = decode_groups(base64.b64decode(found[1]))
    assert header["closed"] is True
    assert len(header["path"]) == 8
    assert int(groups["bars"]["count"].sum()) == header["events"]
    assert len(groups["gaps"]["start"]) > 0
    assert "Rank 3 works" in text


def test_names_from_files_are_escaped_in_the_file(tmp_path: Path) -> None:
    layers = tuple(type(one)(name=f"<i>{one.name}", forward_s=one.forward_s, backward_s=one.backward_s) for one in gpt_layers())
    made = SyntheticRun(root=tmp_path, run_id="<b>run", layers=layers).train(8)
    text = page_text(Run.open(made.directory.path))
    assert "<b>run" not in text
    assert "<i>embed" not in text
    assert "&lt;i&gt;embed" in text


def test_a_run_before_its_first_step_is_a_page_that_says_so(tmp_path: Path) -> None:
    made = SyntheticRun(root=tmp_path, run_id="early")
    assert "there is no timeline" in page_text(Run.open(made.directory.path))


@pytest.fixture
def events(tmp_path: Path) -> pd.DataFrame:
    return Run.open(SyntheticRun(root=tmp_path, run_id="run").train(3).directory.path).timeline()


def test_tables_hold_every_event_with_the_name_of_its_op(events: pd.DataFrame, tmp_path: Path) -> None:
    write_csv(events, tmp_path / "events.csv")
    write_parquet(events, tmp_path / "events.parquet")
    expected = named_ops(events)
    assert set(expected.loc[expected["op"] == int(Op.BACKWARD), "op_name"]) == {"backward"}
    for read in (pd.read_csv(tmp_path / "events.csv"), pd.read_parquet(tmp_path / "events.parquet")):
        pd.testing.assert_frame_equal(read, expected, check_dtype=False)


def test_a_trace_has_a_process_a_rank_and_its_events_nest_within_a_track(events: pd.DataFrame, tmp_path: Path) -> None:
    write_perfetto(events, tmp_path / "trace.json", name="run")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["traceEvents"] == list(trace_events(events))
    complete = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in complete} == {0, 1, 2, 3}
    assert min(event["ts"] for event in complete) == 0
    for track in {(event["pid"], event["tid"]) for event in complete}:
        open_until: list[float] = []
        for event in sorted((e for e in complete if (e["pid"], e["tid"]) == track), key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 1e-6:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 1e-6
            open_until.append(event["ts"] + event["dur"])


def test_a_place_that_cannot_be_written_is_named(events: pd.DataFrame, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(RunError, match="choose a writable place"):
        write_csv(events, tmp_path / "taken" / "events.csv")
