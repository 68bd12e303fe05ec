import pytest
import torch

import pptoolkit as pp
from pptoolkit.cli.main import run as command
from pptoolkit.config import RunConfig
from pptoolkit.errors import ConfigError
from pptoolkit.models import sleeping_layers, squared_error
from pptoolkit.models.mlp import mlp_layers
from pptoolkit.plan import Plan
from pptoolkit.planner.cost_profile import CostProfile
from pptoolkit.profiler import default_sizes, profile_job

JOB = """
import torch
import pptoolkit as pp
from pptoolkit.models import sleeping_layers, squared_error

def job():
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(0))
    times = [0.008, 0.002, 0.002, 0.002]
    layers = sleeping_layers(times, [2 * t for t in times], width=8)
    return pp.Job(layers=layers, loss=squared_error, dataset=lambda: torch.utils.data.TensorDataset(x, x.cos()))
"""
CONFIG = {"training": {"batch_size": 16}, "plan": {"micro_batches": 4}}


def job_of(layers, width=8, samples=32):
    x = torch.randn(samples, width, generator=torch.Generator().manual_seed(0))
    return pp.Job(layers=layers, loss=squared_error, dataset=lambda: torch.utils.data.TensorDataset(x, x.cos()))


def config(**changes):
    return RunConfig.from_dict({**CONFIG, **changes}, where="the test")


def test_layers_that_take_the_same_for_any_size_are_all_fixed_part():
    times = [0.02, 0.005]
    found = profile_job(job_of(sleeping_layers(times, [2 * t for t in times], width=8)), config(), sizes=(2, 8), repeats=5)
    assert found.sizes == (2, 8)
    for layer, seconds in zip(found.layers, times, strict=True):
        # A busy machine adds time and takes none away.
        assert layer.forward.at(4) >= 0.9 * seconds
        assert layer.backward.at(4) >= 1.8 * seconds
    assert found.layers[0].forward.at(4) > 1.5 * found.layers[1].forward.at(4)
    assert found.layers[0].forward.fixed_s > found.layers[0].forward.per_sample_s


def test_bytes_are_those_of_the_tensors():
    found = profile_job(job_of(mlp_layers(8, 2)), config(), sizes=(4, 8), repeats=2)
    layer = found.layers[0]
    assert layer.parameter_bytes == (8 * 8 + 8) * 4
    assert layer.boundary_bytes == 8 * 4  # a sample's row
    assert layer.optimizer_bytes == 3 * layer.parameter_bytes  # a gradient and AdamW's two moments
    assert layer.activation_bytes >= 8 * 4
    assert layer.optimizer_s > 0


def test_weights_are_left_as_they_were():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    before = [p.detach().clone() for p in model.parameters()]
    profile_job(job_of(model), config(), sizes=(4,), repeats=2)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_size_that_does_not_fit_the_batch_is_refused():
    with pytest.raises(ConfigError, match="a micro-batch of 32 samples does not fit the batch of 16"):
        profile_job(job_of(mlp_layers(8, 2)), config(), sizes=(32,))


@pytest.mark.parametrize(("batch", "micro_batches", "sizes"), [(16, 4, (2, 4, 8)), (8, 8, (1, 2)), (4, 1, (2, 4))])
def test_default_sizes_are_around_the_configured_one(batch, micro_batches, sizes):
    assert default_sizes(batch, micro_batches) == sizes


def test_profile_suggest_and_apply_without_any_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sleepy.py").write_text(JOB)
    (tmp_path / "job.toml").write_text(
        '[model]\nkind = "custom"\nfactory = "sleepy.py:job"\n[training]\nbatch_size = 16\n[plan]\nmicro_batches = 4\n'
    )
    assert command(["profile", "job.toml", "-o", "p.json", "--sizes", "2,4", "--repeats", "3"]) == 0
    assert "sleep00" in capsys.readouterr().out
    assert [layer.name for layer in CostProfile.load("p.json").layers] == ["sleep00", "sleep01", "sleep02", "sleep03"]
    arguments = ["suggest", "--profile", "p.json", "--ranks", "2", "--schedules", "1f1b", "--micro-batches", "4", "-o", "plan.toml"]
    assert command(arguments) == 0
    plan = Plan.load("plan.toml")
    assert plan.cuts == (1,)
    assert plan.fingerprint
