"""Which device a rank gets, and what is refused before training starts. Nothing here needs a GPU: what there is, is told."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pptoolkit.engine.device import (
    Accelerators,
    Place,
    backend_for,
    check_backends,
    check_launch,
    check_places,
    choose_device,
    device_reason,
    local_place,
)
from pptoolkit.engine.mesh import Mesh
from pptoolkit.engine.routes import DirectedRoutes, directions, make_routes, place_in
from pptoolkit.errors import ConfigError
from pptoolkit.models import mlp_layers
from pptoolkit.plan import Plan
from tests.trainer import cases

NOTHING = Accelerators(devices=0, built=False, nccl=False, version="9.9")
FOUR = Accelerators(devices=4, built=True, nccl=True, version="9.9")
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("setting", "local_rank", "ranks_here", "devices", "wanted"),
    [
        ("cpu", 3, 4, 4, "cpu"),
        ("cuda", 0, 4, 4, "cuda:0"),
        ("cuda", 3, 4, 4, "cuda:3"),
        ("cuda", 3, 4, 1, "cuda:0"),  # a launcher that shows each rank its own device only
        ("auto", 3, 4, 4, "cuda:3"),
        ("auto", 3, 4, 3, "cpu"),
        ("auto", 0, 1, 1, "cuda:0"),
        ("auto", 0, 1, 0, "cpu"),
    ],
)
def test_a_rank_gets_the_device_of_its_place_on_the_host(setting: str, local_rank: int, ranks_here: int, devices: int, wanted: str) -> None:
    there = replace(FOUR, devices=devices)
    assert choose_device(setting, local_rank=local_rank, ranks_here=ranks_here, there=there) == torch.device(wanted)


@pytest.mark.parametrize(
    ("there", "ranks_here", "told"),
    [
        (NOTHING, 2, "device auto: cpu, because torch 9.9 is built without CUDA"),
        (replace(FOUR, devices=0), 2, "device auto: cpu, because torch 9.9 sees no CUDA device"),
        (replace(FOUR, devices=1), 4, "device auto: cpu, because torch sees 1 CUDA device for the 4 ranks of this host"),
        (replace(FOUR, nccl=False), 2, "device auto: cpu, because torch 9.9 has no NCCL, which carries tensors between the 2 ranks"),
        (FOUR, 4, "device auto: cuda, because torch sees 4 CUDA devices for the 4 ranks of this host"),
    ],
)
def test_what_auto_has_become_is_told_with_the_reason(there: Accelerators, ranks_here: int, told: str) -> None:
    device = choose_device("auto", local_rank=0, ranks_here=ranks_here, there=there)
    assert device_reason("auto", device, ranks_here=ranks_here, there=there).startswith(told)
    assert device_reason("cpu", torch.device("cpu"), ranks_here=ranks_here, there=there) == ""


def test_auto_takes_the_cpu_where_nothing_could_carry_tensors_between_the_gpus() -> None:
    there = replace(FOUR, nccl=False)
    assert choose_device("auto", local_rank=1, ranks_here=2, there=there).type == "cpu"
    assert choose_device("auto", local_rank=0, ranks_here=1, there=there).type == "cuda"


@pytest.mark.parametrize(
    ("setting", "there", "message"),
    [
        ("gpu", FOUR, "device='gpu' is unknown; use 'cpu', 'cuda' or 'auto'"),
        ("cuda", NOTHING, "device='cuda', but torch 9.9 is built without CUDA; install a build with it, or use device='cpu'"),
        ("cuda", replace(FOUR, devices=0), "torch 9.9 sees no CUDA device; look at nvidia-smi and at CUDA_VISIBLE_DEVICES"),
    ],
)
def test_a_device_that_cannot_be_had_is_refused(setting: str, there: Accelerators, message: str) -> None:
    with pytest.raises(ConfigError) as choosing:
        choose_device(setting, local_rank=0, ranks_here=1, there=there)
    with pytest.raises(ConfigError) as launching:
        check_launch(setting, ranks=1, there=there)
    assert message in str(choosing.value)
    assert message in str(launching.value)


@pytest.mark.parametrize(
    ("ranks", "there", "message"),
    [
        (5, FOUR, "device='cuda' with 5 ranks on this host, but torch sees 4 CUDA devices, and NCCL refuses two ranks on one device"),
        (2, replace(FOUR, devices=1), "torch sees 1 CUDA device, and NCCL refuses two ranks on one device; start at most 1"),
        (2, replace(FOUR, nccl=False), "device='cuda' with 2 ranks needs NCCL, which torch 9.9 is built without"),
    ],
)
def test_more_ranks_than_devices_are_refused_before_a_process_starts(ranks: int, there: Accelerators, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_launch("cuda", ranks=ranks, there=there)
    assert message in str(refused.value)
    check_launch("auto", ranks=ranks, there=there)
    check_launch("cpu", ranks=ranks, there=NOTHING)


def test_two_ranks_on_one_gpu_are_refused_by_its_name() -> None:
    def on(gpu: str, host: str = "a") -> Place:
        return Place(kind="cuda", host=host, gpu=gpu)

    check_places([on("GPU-1"), on("GPU-2"), on("GPU-1", host="b")])
    check_places([Place(kind="cpu", host="a", gpu="")] * 3)
    with pytest.raises(ConfigError, match="ranks 0 and 2 on a share GPU GPU-1, which NCCL refuses; start one rank per GPU"):
        check_places([on("GPU-1"), on("GPU-2"), on("GPU-1")])


def test_ranks_on_different_kinds_of_device_are_refused() -> None:
    with pytest.raises(ConfigError, match="but rank 1 on b has cpu and rank 0 on a has cuda; set device='cpu'"):
        check_places([Place(kind="cuda", host="a", gpu="GPU-1"), Place(kind="cpu", host="b", gpu="")])


def test_agreements_stay_on_gloo_and_tensors_between_gpus_go_by_nccl() -> None:
    assert backend_for(CUDA, ranks=2, there=FOUR) == "cpu:gloo,cuda:nccl"
    assert backend_for(CUDA, ranks=1, there=replace(FOUR, nccl=False)) == "gloo"
    assert backend_for(torch.device("cpu"), ranks=2, there=NOTHING) == "gloo"
    with pytest.raises(ConfigError, match="needs NCCL"):
        backend_for(CUDA, ranks=2, there=replace(FOUR, nccl=False))


@pytest.mark.parametrize("config", ["cuda:nccl", "cpu:gloo,cuda:gloo", "cpu:gloo"])
def test_a_process_group_of_the_users_that_cannot_carry_it_is_refused(config: str) -> None:
    with pytest.raises(ConfigError, match=r"call dist.init_process_group\('cpu:gloo,cuda:nccl'\)"):
        check_backends(config, CUDA, ranks=2)
    check_backends(config, torch.device("cpu"), ranks=2)
    check_backends("cpu:gloo,cuda:nccl", CUDA, ranks=2)
    check_backends("cpu:gloo,cuda:gloo", CUDA, ranks=1)


def test_the_place_on_the_host_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert local_place() == (0, 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert local_place() == (2, 4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, and here it is asked for where there is none")
def test_a_trainer_that_asks_for_a_gpu_where_there_is_none_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="device='cuda', but torch"):
        cases.train(str(tmp_path), plan=Plan(), device="cuda")
    assert list(tmp_path.iterdir()) == []
    assert not torch.distributed.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, and auto would take it")
def test_auto_trains_on_the_cpu_where_there_is_no_gpu(tmp_path: Path) -> None:
    layers = lambda: mlp_layers(cases.WIDTH, cases.DEPTH, dtype=torch.float64)  # noqa: E731
    assert cases.train(str(tmp_path / "auto"), plan=Plan(), layers=layers, device="auto") == cases.train(
        str(tmp_path / "cpu"), plan=Plan(), layers=layers
    )


def test_each_direction_between_neighbours_has_a_line_and_all_ranks_list_them_alike() -> None:
    assert directions([0, 1, 2], replicas=1) == [(0, 1), (1, 0), (1, 2), (2, 1)]
    assert directions([0, 1, 0, 1], replicas=2) == [(0, 1), (1, 0), (2, 3), (3, 2)]
    assert directions([0, 1, 2, 0, 1, 2], replicas=1) == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert directions([0, 0], replicas=1) == []
    assert [place_in((5, 3), rank) for rank in (3, 5)] == [0, 1]


def test_a_single_rank_on_a_gpu_needs_no_lines() -> None:
    mesh = Mesh(replica=0, replicas=1, pipeline_rank=0, pipeline_ranks=1, device_mesh=None)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert not isinstance(make_routes(mesh, [0, 0], CUDA), DirectedRoutes)
    finally:
        torch.distributed.destroy_process_group()
