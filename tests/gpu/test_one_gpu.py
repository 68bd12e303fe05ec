"""What holds on one GPU, in one process with several stages: the numbers are those of the CPU, and the times those of the stream."""

import functools
import re
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from pptoolkit.engine.event_clock import EventClock
from pptoolkit.engine.layers import Layer
from pptoolkit.engine.optimisation import LossScale, Optimisation
from pptoolkit.models import mlp_layers, squared_error
from pptoolkit.plan import Plan
from pptoolkit.telemetry import EventReader, Flag, Op, RunDirectory
from pptoolkit.telemetry.accounting import split_steps
from pptoolkit.telemetry.events import COMPUTE_OPS
from pptoolkit.telemetry.settings import TelemetrySettings
from pptoolkit.trainer import Trainer
from tests.engine import cases as engine_cases
from tests.engine.models import train_step
from tests.trainer import cases, parity

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
LAYERS: Callable[..., list[Layer]] = functools.partial(mlp_layers, cases.WIDTH, cases.DEPTH, dtype=torch.float64)
PLANS = [
    Plan(schedule="gpipe", micro_batches=4),
    Plan(schedule="interleaved-1f1b", micro_batches=4, cuts=(2, 4, 6)),
    Plan(schedule="interleaved-zb", micro_batches=4, cuts=(2, 4, 6)),
    Plan(schedule="zbv", micro_batches=4, cuts=(3,)),
    Plan(schedule="dualpipev", micro_batches=4, cuts=(5,)),
]
by_schedule = pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.schedule)


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """A process of one rank joins a group of its own; a test that broke off leaves it to the next."""
    yield
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@by_schedule
def test_losses_gradients_and_parameters_are_those_of_one_process_on_the_cpu(tmp_path: Path, plan: Plan) -> None:
    parity.assert_same(cases.train(str(tmp_path), plan=plan, layers=LAYERS, device=DEVICE), parity.one_process(layers=LAYERS))


@pytest.mark.parametrize(
    "settings", [{"clip_norm": 0.05}, {"accumulation": 2}, {"recompute": ("layer0[1-3]",)}, {"frozen": ("layer00",)}], ids=str
)
def test_settings_of_the_training_mean_the_same_there(tmp_path: Path, settings: dict[str, Any]) -> None:
    plan = PLANS[1]
    parity.assert_same(
        cases.train(str(tmp_path / "gpu"), plan=plan, layers=LAYERS, device=DEVICE, **settings),
        cases.train(str(tmp_path / "cpu"), plan=plan, layers=LAYERS, **settings),
    )


def test_a_loss_over_tokens_means_the_same_there(tmp_path: Path) -> None:
    got = cases.train(str(tmp_path), plan=PLANS[1], layers=LAYERS, tokens=True, device=DEVICE)
    parity.assert_same(got, parity.one_process(layers=LAYERS, tokens=True))


@by_schedule
def test_with_dropout_and_batch_norm_the_numbers_are_those_of_one_process_on_the_same_device(plan: Plan) -> None:
    cuts = tuple(range(1, plan.stages)) if plan.stages > 1 else ()
    found = cases.verified(plan=Plan(schedule=plan.schedule, micro_batches=4, cuts=cuts), device=DEVICE)
    assert found["holds"], found


def test_the_random_state_of_the_device_is_the_users_own_afterwards(tmp_path: Path) -> None:
    torch.cuda.manual_seed(5)
    wanted = torch.rand(3, device=DEVICE).tolist()
    torch.cuda.manual_seed(5)
    cases.train(str(tmp_path), plan=PLANS[1], layers=functools.partial(LAYERS, dropout=0.5), device=DEVICE)
    assert torch.rand(3, device=DEVICE).tolist() == wanted


def test_a_step_is_issued_without_the_host_waiting_for_the_device() -> None:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    layers = mlp_layers(engine_cases.WIDTH, 8, dropout=0.1, dtype=torch.float64)
    pipeline = engine_cases.make_pipeline(layers, schedule="interleaved-1f1b", micro_batches=4, cuts=(2, 4, 6), device=DEVICE)
    train_step(pipeline, *engine_cases.batch(0, 8), step=0)
    issue = pipeline._train.run_step

    def watched(**named: Any) -> Any:
        _watch_syncs("error")
        try:
            return issue(**named)
        finally:
            _watch_syncs("default")

    pipeline._train.run_step = watched  # type: ignore[method-assign]
    assert train_step(pipeline, *engine_cases.batch(1, 8), step=1, sampled=1) > 0


def _watch_syncs(mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode does not see everything
        torch.cuda.set_sync_debug_mode(mode)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run with telemetry, large enough that its kernels take time."""
    width, samples = 1024, 512
    x = torch.randn(4 * samples, width, generator=torch.Generator().manual_seed(1), dtype=torch.float32)
    layers = mlp_layers(width, 8, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("run") / "run"
    with Trainer(
        layers,
        loss=squared_error,
        optimizer=cases.adam,
        plan=Plan(schedule="interleaved-1f1b", micro_batches=4, cuts=(2, 4, 6)),
        run=folder,
        telemetry=TelemetrySettings(port=None),
        optimisation=Optimisation(accumulation=2),
        progress=False,
        device=DEVICE,
    ) as trainer:
        assert isinstance(trainer.pipeline.clock, EventClock)
        trainer.fit(torch.utils.data.TensorDataset(x, x.cos()), batch_size=samples, steps=6)
    return RunDirectory(folder)


def test_op_times_are_the_streams_one_after_the_other_and_inside_their_step(run: RunDirectory) -> None:
    events = EventReader(run).read_all().to_pandas()
    compute = [int(op) for op in COMPUTE_OPS]
    for _, rows in events[events["step"] >= 0].groupby("step"):
        (step,) = rows[rows["op"] == int(Op.STEP)].itertuples()
        ops = rows[rows["op"].isin(compute)].sort_values("start_ns")
        spans = list(zip(ops["start_ns"], ops["end_ns"], strict=True))
        assert len(spans) == 2 * 4 * 4 * 2, "forward and backward of 4 stages, 4 micro-batches, 2 accumulated passes"
        assert len(set(ops["micro_batch"])) == 8, "micro-batches count on from pass to pass"
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
        assert step.start_ns <= spans[0][0]
        assert spans[-1][1] <= step.end_ns
        assert 0 < sum(b - a for a, b in spans) <= step.end_ns - step.start_ns
        assert (ops["memory_bytes"] > 0).all()
        for sampled in ops[(ops["flags"] & int(Flag.SAMPLED)) > 0].itertuples():
            layer_op = Op.LAYER_FORWARD if sampled.op == int(Op.FORWARD) else Op.LAYER_BACKWARD
            own = rows[(rows["op"] == int(layer_op)) & (rows["stage"] == sampled.stage)]
            assert (own["start_ns"] >= sampled.start_ns).all()
            assert (own["end_ns"] <= sampled.end_ns).all()


def test_a_steps_parts_sum_to_its_wall_time_and_computing_is_among_them(run: RunDirectory) -> None:
    parts = split_steps(EventReader(run).read_all())
    states = [name for name in parts.columns if name.endswith("_ns") and name not in ("start_ns", "end_ns", "wall_ns")]
    assert (parts[states].sum(axis=1) == parts["wall_ns"]).all()
    assert (parts["compute_ns"] > 0).all()
    assert (parts["optimizer_ns"] > 0).all()


def test_the_run_says_on_which_gpu_it_was_and_the_metrics_what_its_allocator_held(run: RunDirectory) -> None:
    info = run.read_info()
    assert info.device == "cuda"
    assert info.gpus == (str(torch.cuda.get_device_properties(0).uuid),)
    metrics = run.metrics_path(0).read_text()
    for name, kind in product(("memory_bytes", "memory_peak_bytes"), ("allocated", "reserved")):
        found = re.search(rf'^pptoolkit_{name}{{[^}}]*kind="{kind}"[^}}]*}} (\S+)$', metrics, re.MULTILINE)
        assert found is not None, f"{name} of kind {kind} is not in the metrics"
        assert float(found[1]) > 0
    (segment, *_) = sorted((run.path / "events").glob("*.arrows"))
    assert pa.ipc.open_stream(segment).schema.metadata[b"pptoolkit.clock_source"] == b"cuda-events"


def test_an_overflow_of_float16_skips_the_step_and_lowers_the_scale(tmp_path: Path) -> None:
    data = cases.numbers(16)
    data.x, data.y = data.x.float(), data.y.float()
    with Trainer(
        mlp_layers(cases.WIDTH, cases.DEPTH, dtype=torch.float32),
        loss=squared_error,
        optimizer=cases.adam,
        plan=PLANS[1],
        run=tmp_path / "run",
        seed=7,
        optimisation=Optimisation(precision="fp16", loss_scale=LossScale(initial=2.0**40, backoff=2.0**-30)),
        telemetry=cases.SILENT,
        progress=False,
        device=DEVICE,
    ) as trainer:
        seen = cases.Watcher(trainer)
        before = {name: p.detach().clone() for name, p in trainer.pipeline.named_parameters().items()}
        trainer.fit(data, batch_size=16, steps=1)
        after = trainer.pipeline.named_parameters()
        assert all(torch.equal(p, after[name]) for name, p in before.items()), "a step that overflowed changes nothing"
        trainer.fit(data, batch_size=16, steps=3)
        assert seen.facts()["skipped"] == [True, False, False]
        assert trainer._training.update.scale.factor == 2.0**10
        assert not any(torch.equal(p, after[name]) for name, p in before.items())
