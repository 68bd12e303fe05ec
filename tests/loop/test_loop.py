"""The loop, command by command: train, report, suggest, apply, train again, compare."""

import json
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.cli.demo import demo_config
from pptoolkit.config import RunConfig
from pptoolkit.plan import Plan
from tests.support.jobs import started

JOB = """
import torch

import pptoolkit as pp
from pptoolkit.models import sleeping_layers, squared_error


def job(times_ms):
    seconds = [t / 1000 for t in times_ms]
    layers = sleeping_layers([t * 0.4 for t in seconds], [t * 0.6 for t in seconds], width=8)
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    return pp.Job(layers=layers, loss=squared_error, dataset=lambda: torch.utils.data.TensorDataset(x, x.cos()))
"""
CONFIG = """
[model]
kind = "custom"
factory = "sleepy.py:job"
arguments = {{ times_ms = {times} }}
[training]
batch_size = 16
steps = 14
[plan]
micro_batches = 8
[telemetry]
port = 19300
"""


def run(folder: Path, *arguments: str) -> str:
    with started(folder, *arguments) as command:
        ended = command.end()
    assert ended.code == 0, ended.output
    return ended.output


def read(folder: Path, *arguments: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(run(folder, *arguments, "--json"))
    return body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the whole loop has run once."""
    folder = tmp_path_factory.mktemp("loop")
    (folder / "sleepy.py").write_text(JOB)
    (folder / "job.toml").write_text(CONFIG.format(times=[50, 10, 10, 10, 10, 10, 10, 10]))
    run(folder, "train", "job.toml", "--nproc", "2")
    run(folder, "apply", "runs/job", "-o", "plan.toml")
    run(folder, "train", "job.toml", "--nproc", "2", "--plan", "plan.toml")
    return folder


def test_the_report_names_the_stage_with_more_work_and_its_parts_sum(folder: Path) -> None:
    report = read(folder, "report", "runs/job")
    assert report["state"] == "finished"
    assert report["steps_done"] == 14
    assert report["device"] == "cpu"
    assert report["verdict"]["stage"] == 0
    for rank in report["accounting"]:
        assert sum(rank["states"].values()) == pytest.approx(rank["wall_s"], rel=1e-6)
        assert rank["states"]["unattributed"] < 0.01 * rank["wall_s"]
    assert report["bubble"]["schedule_ratio"] == pytest.approx(1 / 9)
    assert report["samples_per_s"] == pytest.approx(16 / report["step_time_s"]["median"], rel=0.15)


def test_the_best_cut_is_suggested_and_the_others_beside_it(folder: Path) -> None:
    found = read(folder, "suggest", "runs/job")
    assert found["suggestions"][0]["plan"]["cuts"] == [2]
    # By arithmetic 0.2; on a busy machine each forward takes longer by the same time, and the layers are less unlike.
    assert found["suggestions"][0]["gain_ratio"] > 0.05
    assert set(found["baselines"]) >= {"uniform"}
    assert abs(found["replay_error_ratio"]) < 0.1


def test_the_applied_plan_says_where_it_comes_from_and_what_it_promises(folder: Path) -> None:
    plan = Plan.load(folder / "plan.toml")
    assert plan.cuts == (2,)
    assert plan.origin is not None
    assert plan.origin.run == "job"
    assert plan.prediction is not None
    assert plan.prediction.low_s <= plan.prediction.step_time_s <= plan.prediction.high_s


def test_the_gain_that_was_promised_arrives_and_no_loss_changes(folder: Path) -> None:
    found = read(folder, "compare", "runs/job", "runs/job-2")
    assert found["gain_ratio"] > 0.05
    assert abs(found["prediction"]["error_ratio"]) < 0.15
    assert found["losses"]["steps"] == 14
    assert found["losses"]["equal_digits"] >= 5


def test_what_people_read_says_the_same(folder: Path) -> None:
    shown = run(folder, "report", "runs/job")
    assert "bottleneck: stage 0" in shown
    assert "2 ranks on cpu, 1f1b" in " ".join(shown.split())
    assert "cuts [2]" in run(folder, "suggest", "runs/job")
    compared = run(folder, "compare", "runs/job", "runs/job-2")
    assert "less time a step" in compared
    assert "predicted" in compared
    assert "inside the predicted interval" in compared or "outside the predicted interval" in compared


def test_the_plan_that_pays_off_is_not_changed_again(folder: Path) -> None:
    found = read(folder, "suggest", "runs/job-2")
    assert found["suggestions"] == []
    assert found["no_change"]["conclusive"]
    with started(folder, "apply", "runs/job-2", "-o", "again.toml") as command:
        ended = command.end()
    assert ended.code == 1
    assert ended.output.startswith("no change: ")
    assert not (folder / "again.toml").exists()


def test_apply_prints_the_command_for_the_next_run(folder: Path) -> None:
    said = run(folder, "apply", "runs/job", "-o", "other.toml")
    assert said.rstrip().endswith("next: pptoolkit train job.toml --nproc 2 --plan other.toml")


def test_the_demo_trains_the_example() -> None:
    example = RunConfig.load(Path(__file__).parents[2] / "examples" / "gpt.toml")
    assert demo_config(example.training.steps) == example
