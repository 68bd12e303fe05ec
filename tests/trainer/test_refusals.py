"""What is not offered, or does not go together, is refused by name before training starts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pptoolkit.config import RunConfig
from pptoolkit.engine.optimisation import LossScale, Optimisation, ParameterGroup
from pptoolkit.errors import ConfigError, InputError, PlanError
from pptoolkit.job import make_job, make_plan
from pptoolkit.job_settings import make_optimisation
from pptoolkit.plan import Plan
from tests.support.ranks import RankPool
from tests.trainer import cases

Pools = Callable[[int], RankPool]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip_norm": 0.0}, "clip_norm=0.0 is out of range"),
        ({"accumulation": 0}, "accumulation=0 is out of range"),
        ({"precision": "fp8"}, "precision='fp8' is unknown; use one of 'full', 'bf16', 'fp16'"),
        ({"replication": "zero"}, "replication='zero' is unknown; use one of 'ddp', 'fsdp'"),
        ({"learning_rate": float, "scheduler": print}, "learning_rate= and scheduler= both set the learning rate"),
    ],
)
def test_settings_out_of_range_name_the_value(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="^" + message.replace("(", r"\(")):
        Optimisation(**settings)


def test_a_loss_scale_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot work"):
        LossScale(backoff=1.0)
    with pytest.raises(ConfigError, match="the patterns choose the parameters"):
        ParameterGroup(("*",), {"params": []})


@pytest.mark.parametrize(
    ("ranks", "plan", "settings", "message"),
    [
        (2, Plan(micro_batches=2, cuts=(4,)), {"frozen": ("layr*",)}, "frozen: the pattern 'layr*' fits no name; the model has layer00"),
        (2, Plan(micro_batches=2, cuts=(4,)), {"recompute": ("x",)}, "recompute: the pattern 'x' fits no name"),
        (2, Plan(micro_batches=2, cuts=(4,)), {"no_decay": ("*.gamma",)}, "groups: the pattern '*.gamma' fits no name"),
        (2, Plan(micro_batches=2, cuts=(4,)), {"precision": "bf16"}, "precision='bf16' has no effect on float64 parameters"),
        (2, Plan(micro_batches=2, cuts=(4,), schedule="zb-h1"), {"compile": True}, "compile=True does not work with schedule 'zb-h1'"),
        (2, Plan(micro_batches=2, cuts=(2, 4)), {}, "there are 3 stages for 2 ranks"),
        (2, Plan(micro_batches=2, replicas=3), {}, "replicas=3 in the plan do not divide 2 ranks"),
        (2, Plan(micro_batches=16, replicas=2), {}, "batch_size=16 cannot be cut into 16 micro-batches on each of 2 replicas"),
    ],
)
@pytest.mark.case("C5")
def test_what_does_not_go_together_is_refused_on_every_rank(
    pool: Pools, tmp_path: Path, ranks: int, plan: Plan, settings: dict[str, Any], message: str
) -> None:
    for answer in pool(ranks).run(cases.refused, str(tmp_path), plan=plan, **settings):
        assert message in answer


def test_three_ranks_and_two_stages_are_refused_with_both_numbers_before_a_layer_is_built(pool: Pools, tmp_path: Path) -> None:
    for message, built in pool(3).run(cases.refused_before_building, str(tmp_path)):
        assert "there are 2 stages for 3 ranks" in message
        assert built == 0


@pytest.mark.parametrize(
    ("training", "plan", "ranks", "message"),
    [
        ({"precision": "bf16", "dtype": "float64"}, {}, 2, "precision='bf16' has no effect with dtype='float64'"),
        ({"warmup_steps": 40}, {}, 2, "warmup_steps=40 do not fit steps=40"),
        ({"final_ratio": 0.1}, {}, 2, "final_ratio=0.1 has no effect with decay='constant'"),
        ({"acumulation": 2}, {}, 2, "unknown key 'training.acumulation'; did you mean 'accumulation'?"),
        ({}, {"replicas": 2}, 3, "replicas=2 in the plan do not divide 3 ranks"),
        ({}, {"replicas": 2, "cuts": [4]}, 2, "cuts=[4] make 2 stages, but 2 ranks were asked for and replicas=2"),
        ({"accumulation": 3}, {}, 2, "training.batch_size=32 cannot be cut into 24 equal micro-batches (3 accumulated passes of 8)"),
        ({}, {"recompute": [2]}, 2, "recompute=[2] names stage 2, but the plan has stages 0 to 1"),
    ],
)
def test_a_job_file_that_does_not_fit_is_refused(training: dict[str, Any], plan: dict[str, Any], ranks: int, message: str) -> None:
    with pytest.raises(InputError) as refused:
        _plan_of({"training": training, "plan": plan}, ranks)
    assert message in str(refused.value)


def _plan_of(body: dict[str, Any], ranks: int) -> Plan:
    config = RunConfig.from_dict(body, where="job.toml")
    return make_plan(make_job(config), config, plan=None, ranks=ranks)


def test_every_key_of_the_job_file_arrives() -> None:
    training = {
        "clip_norm": 0.5,
        "accumulation": 2,
        "precision": "fp16",
        "warmup_steps": 4,
        "decay": "linear",
        "final_ratio": 0.1,
        "no_decay": ["*.bias"],
        "frozen": ["embed"],
        "recompute": ["block0?"],
        "replication": "fsdp",
    }
    config = RunConfig.from_dict({"training": training, "plan": {"replicas": 2, "recompute": [0]}}, where="job.toml")
    settings = make_optimisation(config)
    for key in ("clip_norm", "accumulation", "precision", "replication"):
        assert getattr(settings, key) == training[key]
    assert (settings.frozen, settings.recompute, settings.loss_scale) == (("embed",), ("block0?",), LossScale())
    assert settings.groups[0].options == {"weight_decay": 0.0}
    assert settings.learning_rate is not None
    assert [round(settings.learning_rate(step), 3) for step in (0, 3, 4, 39)] == [0.25, 1.0, 1.0, 0.1]
    plan = make_plan(make_job(config), config, plan=None, ranks=4)
    assert (plan.replicas, plan.recompute, plan.stages) == (2, (0,), 2)
    with pytest.raises(PlanError, match="do not divide 3 ranks"):
        make_plan(make_job(config), config, plan=None, ranks=3)
