"""Two ranks on two GPUs: NCCL carries what crosses, in both directions at once, and the numbers stay those of one process."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pptoolkit.engine.layers import Layer
from pptoolkit.models import mlp_layers
from pptoolkit.plan import Plan
from pptoolkit.telemetry import EventReader, Flag, Op, RunDirectory
from pptoolkit.telemetry.settings import TelemetrySettings
from tests.support.ranks import RankPool
from tests.trainer import cases, parity

pytestmark = pytest.mark.gpu(2)

LAYERS: Callable[[], list[Layer]] = functools.partial(mlp_layers, cases.WIDTH, cases.DEPTH, dtype=torch.float64)
PLANS = [
    Plan(schedule="1f1b", micro_batches=6, cuts=(3,)),
    Plan(schedule="zb-h1", micro_batches=6, cuts=(3,)),
    Plan(schedule="interleaved-1f1b", micro_batches=4, cuts=(2, 4, 6)),
    Plan(schedule="zbv", micro_batches=4, cuts=(2, 4, 6)),
    Plan(micro_batches=4, replicas=2),
]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.schedule}-{plan.replicas}")
def test_two_gpus_compute_what_one_process_on_the_cpu_computes(two_gpus: RankPool, tmp_path: Path, plan: Plan) -> None:
    answers = two_gpus.run(cases.train, str(tmp_path), plan=plan, samples=24, layers=LAYERS, device="cuda", clip_norm=0.05)
    parity.assert_same(parity.merge(answers), parity.one_process(samples=24, layers=LAYERS, clip_norm=0.05))


def test_sharded_replicas_compute_it_too(two_gpus: RankPool, tmp_path: Path) -> None:
    plan = Plan(micro_batches=4, replicas=2)
    answers = two_gpus.run(cases.train, str(tmp_path), plan=plan, layers=LAYERS, device="cuda", replication="fsdp")
    parity.assert_same(parity.merge(answers), parity.one_process(layers=LAYERS))


def test_waits_are_known_and_no_transfer_is_claimed(two_gpus: RankPool, tmp_path: Path) -> None:
    plan = Plan(schedule="1f1b", micro_batches=6, cuts=(3,))
    two_gpus.run(cases.train, str(tmp_path), plan=plan, samples=24, layers=LAYERS, device="cuda", telemetry=TelemetrySettings(port=None))
    run = RunDirectory(tmp_path / "run")
    events = EventReader(run).read_all().to_pandas()
    receives = events[events["op"] == int(Op.RECV)]
    assert len(receives) == 2 * 6 * cases.STEPS
    assert ((receives["flags"] & int(Flag.TRANSFER_UNSEEN)) > 0).all()
    assert len(set(run.read_info().gpus)) == 2
