"""What benchmarks/overhead.py sets beside telemetry's own cost, and what it says of it."""

import sys
from importlib.util import find_spec

import pytest

from benchmarks.overhead import PEERS, peer_results
from benchmarks.overhead_ranks import sleeping, sleeping_work
from benchmarks.step_sides import SIDES
from benchmarks.turns import check_same_training, has_deepspeed
from pptoolkit.errors import ConfigError, TrainingError


def test_a_peers_share_is_told_with_the_length_of_its_job_and_without_a_goal():
    off = [0.100, 0.110, 0.090, 0.100, 0.120, 0.105]
    share, step = peer_results(PEERS["torch"], on=[1.25 * x for x in off], off=off, steps=79)
    assert share.name == "torch: torch.profiler's share of the step, in a job of 79 steps"
    assert (share.low, share.value, share.high) == pytest.approx((25, 25, 25))
    assert (step.name, step.unit, step.low) == ("torch: step without", "ms", pytest.approx(90))
    assert {share.holds, step.holds} == {None}


def test_peers_train_the_same_layers_on_the_same_batch_as_ours():
    ours, work = sleeping(), sleeping_work(rounds=6, block_steps=12)
    built = [layer.build(0) for layer in [*ours.layers, *work.layer_list()]]
    assert len({(module.forward_s, module.backward_s, module.linear.weight.shape) for module in built}) == 1
    assert len(ours.layers) == len(work.layer_list())
    assert all(a.equal(b) for a, b in zip(ours.batch, work.batch(), strict=True))
    assert {side for peer in PEERS.values() for side in (peer.off, peer.on)} <= set(SIDES)


def test_a_side_that_trains_something_else_is_refused():
    check_same_training({"torch": 0.5, "deepspeed": 0.500001})
    for other in (0.51, float("nan")):
        with pytest.raises(TrainingError, match="deepspeed ended with loss"):
            check_same_training({"torch": 0.5, "deepspeed": other})


@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="DeepSpeed is installed")
def test_a_missing_deepspeed_is_skipped_with_the_command_that_would_include_it(capfd):
    assert not has_deepspeed(sys.executable, benchmark="overhead")
    assert "python -m benchmarks.overhead --deepspeed-python" in capfd.readouterr().err


def test_an_interpreter_that_is_not_there_is_an_error():
    with pytest.raises(ConfigError, match="--deepspeed-python /no/such/python cannot be started"):
        has_deepspeed("/no/such/python", benchmark="overhead")
