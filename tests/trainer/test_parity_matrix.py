"""The parity matrix: whatever the schedule, the ranks, the replicas and the settings, the numbers are those of one process.

Losses, gradients, norms and parameters after five steps of AdamW in float64, against plain PyTorch on the whole batch.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pptoolkit.plan import Plan, equal_layer_cuts
from tests.support.ranks import RankPool
from tests.trainer import cases
from tests.trainer.parity import assert_same, merge, one_process

Pools = Callable[[int], RankPool]

# name -> (settings of the trainer, what the reference must know of them)
FEATURES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "clipping": ({"clip_norm": 0.1}, {"clip_norm": 0.1}),
    "accumulation": ({"accumulation": 2}, {}),
    "ragged": ({"samples": 18}, {"samples": 18}),
    "tokens": ({"tokens": True}, {"tokens": True}),
    "groups": ({"no_decay": ("*.bias",)}, {"no_decay": ("*.bias",)}),
    "learning rate": ({"learning_rate": cases.warm_up}, {"learning_rate": cases.warm_up}),
    "frozen layers": ({"frozen": ("layer03", "*6.*bias")}, {"frozen": ("layer03", "*6.*bias")}),
    "frozen first half": ({"frozen": ("layer0[0-3]",), "clip_norm": 0.1}, {"frozen": ("layer0[0-3]",), "clip_norm": 0.1}),
    "recomputed layers": ({"recompute": ("layer0[0246]",)}, {}),
    "recomputed stages": ({"recompute_stages": True}, {}),
    "all together": (
        {"clip_norm": 0.1, "accumulation": 2, "tokens": True, "no_decay": ("*.bias",), "recompute_stages": True, "samples": 18},
        {"clip_norm": 0.1, "tokens": True, "no_decay": ("*.bias",), "samples": 18},
    ),
}
LAYOUTS = {"1": (1, 1), "2": (2, 1), "4": (4, 1), "2x2": (4, 2), "2x1": (2, 2)}  # ranks, replicas
STAGES_PER_RANK = {"gpipe": 1, "1f1b": 1, "zb-h1": 1, "interleaved-1f1b": 2, "looped-bfs": 2, "interleaved-zb": 2, "zbv": 2, "dualpipev": 2}

pytestmark = pytest.mark.slow  # many starts of many ranks: run with make test-slow


@pytest.fixture(scope="module", autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_plan(schedule: str, layout: str, *, recompute_stages: bool = False, micro_batches: int = 4) -> tuple[int, Plan]:
    ranks, replicas = LAYOUTS[layout]
    stages = ranks // replicas * STAGES_PER_RANK[schedule]
    recompute = tuple(range(stages)) if recompute_stages else ()
    cuts = equal_layer_cuts(cases.DEPTH, stages)
    return ranks, Plan(cuts=cuts, schedule=schedule, micro_batches=micro_batches, replicas=replicas, recompute=recompute)


def check(pool: Pools, folder: Path, schedule: str, layout: str, feature: str, **more: Any) -> None:
    settings, known = FEATURES[feature]
    settings = dict(settings)
    ranks, plan = make_plan(schedule, layout, recompute_stages=settings.pop("recompute_stages", False))
    answers = pool(ranks).run(cases.train, str(folder), plan=plan, **settings, **more)
    assert_same(merge(answers), one_process(**known))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_equals_one_process_under_every_layout(pool: Pools, tmp_path: Path, layout: str, feature: str) -> None:
    check(pool, tmp_path, "1f1b", layout, feature)


@pytest.mark.parametrize("schedule", [s for s in STAGES_PER_RANK if s != "1f1b"])
@pytest.mark.parametrize("feature", FEATURES)
def test_every_feature_equals_one_process_under_every_schedule(pool: Pools, tmp_path: Path, schedule: str, feature: str) -> None:
    check(pool, tmp_path, schedule, "2", feature)


@pytest.mark.parametrize("schedule", [s for s in STAGES_PER_RANK if s != "1f1b"])
def test_every_schedule_equals_one_process_with_replicas(pool: Pools, tmp_path: Path, schedule: str) -> None:
    check(pool, tmp_path, schedule, "2x2", "all together")


@pytest.mark.parametrize(("schedule", "layout"), [("1f1b", "2x2"), ("gpipe", "2x2"), ("1f1b", "2x1"), ("interleaved-1f1b", "2x2")])
@pytest.mark.parametrize(
    "feature",
    [
        "plain",
        "clipping",
        "accumulation",
        "ragged",
        "tokens",
        "groups",
        "learning rate",
        "frozen layers",
        "frozen first half",
        "recomputed layers",
    ],
)
def test_sharded_replicas_equal_one_process(pool: Pools, tmp_path: Path, schedule: str, layout: str, feature: str) -> None:
    check(pool, tmp_path, schedule, layout, feature, replication="fsdp")
