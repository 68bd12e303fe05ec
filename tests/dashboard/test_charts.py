"""Charts as data: what is drawn, in which colours, and that it stays small."""

import json

import altair as alt
import numpy as np
import pandas as pd
import pytest

from dashboard.charts.curves import MOST_POINTS, curve_chart, step_time_chart, thin_out
from dashboard.charts.gains import gain_chart, gain_rows
from dashboard.charts.heat import heat_chart, heat_rows
from dashboard.charts.intervals import StepTime, interval_chart
from dashboard.charts.limits import Against, limit_chart
from dashboard.charts.palette import RANK_COLORS, STATE_COLORS
from dashboard.charts.ranks import MOST_WRITTEN, rank_chart, rank_rows
from dashboard.charts.spec import spec_of
from dashboard.charts.split import split_chart, split_rows
from dashboard.charts.strip import strip_chart, strip_rows
from dashboard.cuts import read_cuts
from dashboard.health import RankPulse
from dashboard.history import history_times
from dashboard.views.rebalance import next_command
from pptoolkit.telemetry import RunInfo
from pptoolkit.telemetry.events import Op


def test_new_rows_change_the_data_of_a_chart_and_no_word_of_its_specification() -> None:
    def words(chart: alt.LayerChart) -> tuple[str, list[int]]:
        spec = spec_of(chart)
        return json.dumps({k: v for k, v in spec.items() if k != "datasets"}), [len(frame) for frame in spec["datasets"].values()]

    def curve(rows: int) -> alt.LayerChart:
        return curve_chart({"a": pd.DataFrame({"step": range(rows), "loss": np.linspace(3, 2, rows)})}, "loss", title="loss")

    (before, few), (after, many) = words(curve(20)), words(curve(21))
    assert before == after
    assert (few, many) == ([20], [21])


def test_every_layer_of_a_chart_finds_its_own_data() -> None:
    bars = [Against(label="rank 0", value=1.0, limit=2.0), Against(label="rank 1", value=1.5, limit=None)]
    chart = limit_chart(bars, title="MiB", value="peak", limit="limit")
    spec = spec_of(chart)
    assert [list(spec["datasets"][layer["data"]["name"]]["label"]) for layer in spec["layer"]] == [
        ["rank 0", "rank 1"],
        ["rank 0", "rank 1"],
        ["rank 0"],
    ]
    assert spec_of(chart) == spec  # and the chart itself is as it was


def test_a_long_curve_is_averaged_to_a_bounded_number_of_points() -> None:
    frame = pd.DataFrame({"step": range(100_000), "loss": np.linspace(5, 1, 100_000)})
    thin = thin_out(frame, "loss")
    assert len(thin) <= MOST_POINTS
    assert thin["loss"].mean() == pytest.approx(3)


def test_steps_without_a_finite_loss_leave_no_point() -> None:
    frame = pd.DataFrame({"step": [0, 1, 2, 3], "loss": [1.0, None, float("nan"), float("inf")]})
    assert thin_out(frame, "loss")["step"].tolist() == [0]


def test_step_times_are_in_the_unit_that_suits_them() -> None:
    def titles(seconds: float) -> str:
        frame = pd.DataFrame({"step": [0, 1], "step_time_s": [seconds, seconds]})
        return str(step_time_chart({"a": frame}).to_dict()["layer"][0]["encoding"]["y"]["title"])

    assert (titles(0.127), titles(3.2)) == ("step time, ms", "step time, s")


def test_two_equal_curves_differ_in_color_and_dash_and_carry_their_names() -> None:
    frame = pd.DataFrame({"step": [0, 1], "loss": [2.0, 1.0]})
    spec = curve_chart({"a": frame, "b": frame}, "loss", title="loss").to_dict()
    encoding = spec["layer"][0]["encoding"]
    assert encoding["color"]["scale"]["domain"] == encoding["strokeDash"]["scale"]["domain"] == ["a", "b"]
    assert len({json.dumps(dash) for dash in encoding["strokeDash"]["scale"]["range"]}) == 2


def test_the_parts_of_a_split_sum_to_the_step_and_keep_their_colors() -> None:
    parts = {0: {"compute": 0.06, "recv_wait": 0.04}, 1: {"compute": 0.1}}
    rows = split_rows(parts, {0: "rank 0", 1: "rank 1"})
    assert rows.groupby("row")["ms"].sum().tolist() == pytest.approx([100, 100])
    assert rows.groupby("row")["share"].sum().tolist() == pytest.approx([1, 1])
    color = split_chart(rows).to_dict()["layer"][0]["encoding"]["color"]["scale"]
    assert color == {"domain": ["compute", "wait to receive"], "range": [STATE_COLORS["compute"], STATE_COLORS["recv_wait"]]}


def test_a_layer_is_as_wide_as_its_cost_and_the_slowest_stage_is_marked() -> None:
    layers, stages = strip_rows(["a", "b", "c"], [0.001, 0.003, 0.002], {"now": (1,), "next": (2,)})
    now = layers[layers["plan"] == "now"]
    assert (now["end"] - now["begin"]).tolist() == pytest.approx([1, 3, 2])
    assert now["stage"].tolist() == ["stage 0", "stage 1", "stage 1"]
    assert stages[stages["slowest"]][["plan", "stage", "ms"]].values.tolist() == [["now", "stage 1", 5.0], ["next", "stage 0", 4.0]]
    texts = json.dumps(strip_chart(layers, stages, ink="#123456").to_dict(), ensure_ascii=False)
    assert "stage 1: 5.00 ms ◂ slowest" in texts
    assert "#123456" in texts


def test_the_heat_map_shows_the_mean_of_forward_and_backward_together() -> None:
    rows = [(0, 0, m, op, 0, ns) for m in range(2) for op, ns in ((Op.FORWARD, 1_000_000), (Op.BACKWARD, 2_000_000))]
    rows += [(1, 0, m, op, 0, 2 * ns) for _, _, m, op, _, ns in rows]
    frame = pd.DataFrame(rows, columns=["step", "stage", "micro_batch", "op", "start_ns", "end_ns"]).assign(replica=0)
    heat = heat_rows(frame)
    assert heat.values.tolist() == [[0, 0, 4.5], [0, 1, 4.5]]
    assert len(heat_chart(heat).to_dict()["layer"]) == 2


def test_many_micro_batches_are_averaged_so_that_the_heat_map_stays_small() -> None:
    frame = pd.DataFrame({"micro_batch": range(1000)}).assign(step=0, stage=0, op=0, start_ns=0, end_ns=1_000_000, replica=0)
    heat = heat_rows(frame)
    assert len(heat) == 250
    assert set(heat["ms"]) == {1.0}


def test_an_interval_is_drawn_from_its_low_to_its_high_end() -> None:
    spec = interval_chart([StepTime(label="now", kind="measured", seconds=0.1, low_s=0.098, high_s=0.103)]).to_dict()
    (row,) = next(iter(spec["datasets"].values()))
    assert (row["low"], row["ms"], row["high"], row["text"]) == (98.0, 100.0, 103.0, "100.0 ms")


@pytest.mark.parametrize(("text", "cuts"), [("3, 6 9", (3, 6, 9)), ("[4]", (4,)), ("", ())])
def test_cuts_are_read_as_people_write_them(text: str, cuts: tuple[int, ...]) -> None:
    assert read_cuts(text) == cuts


def test_the_next_command_uses_the_runs_own_config_and_quotes_what_a_shell_would_split() -> None:
    info = RunInfo(run_id="a", command=("pptoolkit", "train", "my jobs/gpt.toml", "--nproc", "2"))
    assert next_command(info, "/tmp/a b.toml") == "pptoolkit train 'my jobs/gpt.toml' --plan '/tmp/a b.toml'"
    assert next_command(RunInfo(run_id="a"), "p.toml") == "pptoolkit train CONFIG --plan p.toml"


def pulse(rank: int, state: str = "alive", doing: str = "waits to receive") -> RankPulse:
    return RankPulse(rank=rank, stages=(rank,), state=state, doing=doing, age_s=0.4, step=7)


def test_the_rank_that_computes_stands_out_among_those_that_wait() -> None:
    rows = rank_rows([pulse(0), pulse(1, doing="computes a forward"), pulse(2), pulse(3, state="silent")])
    assert rows["kind"].tolist() == ["waits", "computes", "waits", "silent"]
    spec = rank_chart(rows).to_dict()
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert dict(zip(scale["domain"], scale["range"], strict=True)) == {k: RANK_COLORS[k] for k in ("computes", "waits", "silent")}
    assert len(spec["layer"]) == 4  # the tiles and three lines of words


def test_a_thousand_ranks_are_tiles_without_words_and_stay_on_the_page() -> None:
    rows = rank_rows([pulse(rank) for rank in range(1024)])
    assert (int(rows["column"].max()), int(rows["row"].max())) == (31, 31)
    assert not rows.duplicated(["column", "row"]).any()
    spec = rank_chart(rows).to_dict()
    assert len(rows) > MOST_WRITTEN
    assert len(spec["layer"]) == 1
    assert spec["height"] <= 560


def test_a_gain_stands_beside_its_promise_and_a_loss_is_called_one() -> None:
    table = pd.DataFrame(
        {"run": ["a", "b", "c"], "parent": [None, "a", "a"], "gain": [np.nan, 16.5, -3.0], "predicted": [np.nan, 16.3, np.nan]}
    )
    rows = gain_rows(table)
    assert rows["run"].tolist() == ["b", "c"]
    spec = gain_chart(rows).to_dict()
    assert spec["layer"][0]["encoding"]["color"]["scale"]["domain"] == ["less time per step", "more time per step", "promised"]
    (marks,) = [values for values in spec["datasets"].values() if len(values) == 1]
    assert marks[0]["promised"] == 16.3


def test_an_applied_plan_shows_its_promise_and_what_came_once_it_came() -> None:
    row = {"run": "b", "predicted": 106.4, "low": 105.1, "high": 107.7}
    rows = pd.DataFrame([{**row, "achieved": 106.1}, {**row, "run": "c", "achieved": None}])
    found = [(time.label, round(time.low_s, 4), round(time.seconds, 4)) for time in history_times(rows)]
    assert found == [("b, promised", 0.1051, 0.1064), ("b, achieved", 0.1061, 0.1061), ("c, promised", 0.1051, 0.1064)]
