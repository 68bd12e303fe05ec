"""The dozen lines of the README, started with plain torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pptoolkit.run import Run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "from_python.py"


def torchrun(folder: Path, ranks: int, script: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--standalone", str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False)


def test_the_readme_shows_the_example_as_it_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert EXAMPLE.read_text() in blocks


def test_the_example_trains_and_tells_the_bottleneck(tmp_path: Path) -> None:
    done = torchrun(tmp_path, 2, EXAMPLE)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "runs" / "from-python")
    assert run.info.status == "finished"
    assert run.report().steps_done == 12
    assert "step 12/12" in done.stdout


SEQUENTIAL = """
import os

import torch
from torch import nn

import pptoolkit as pp

rank = int(os.environ.get("RANK", 0))
torch.manual_seed(0 if "{seed}" == "seeded" else rank)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
with pp.Trainer(model, loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
                plan=pp.Plan(cuts=[2], micro_batches=4), run="runs/seq") as trainer:
    trainer.fit(torch.utils.data.TensorDataset(x, x), batch_size=8, steps=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["seeded", "unseeded"])
def test_a_sequential_is_taken_only_if_all_ranks_built_it_alike(tmp_path: Path, seed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SEQUENTIAL.format(seed=seed))
    done = torchrun(tmp_path, 2, script)
    if seed == "seeded":
        assert done.returncode == 0, done.stderr
        assert Run.open(tmp_path / "runs" / "seq").report().steps_done == 3
    else:
        assert done.returncode != 0
        assert "call torch.manual_seed(...) before building it" in done.stderr


@pytest.mark.case("C5")
def test_without_torchrun_one_process_trains_alone(tmp_path: Path) -> None:
    script = tmp_path / "one.py"
    script.write_text(
        SEQUENTIAL.format(seed="seeded").replace("cuts=[2]", "cuts=[]").replace('run="runs/seq"', 'run="runs/seq", device="auto"')
    )
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    run = Run.open(tmp_path / "runs" / "seq")
    assert run.info.ranks == 1
    assert f"device auto: {run.info.device}, because torch " in done.stdout
    assert run.suggest().no_change is not None
