import pytest

from tests.analysis.synthetic_run import Truth, write_run


def test_the_stage_table_says_what_each_stage_computes_holds_and_waits_for(tmp_path):
    truth = Truth(forward_s=[0.002, 0.002, 0.006, 0.002], cuts=[2], sampled=False, micro_batches=4)
    first, second = write_run(tmp_path / "r", truth).report().stages
    assert (first.layers, first.layer_names) == ((0, 2), ("block0", "block1"))
    assert first.forward.median == pytest.approx(0.004)
    assert second.backward.median == pytest.approx(0.016)
    assert second.compute_s.median == pytest.approx(4 * 0.024)
    assert second.share > 0.85 > first.share
    assert (first.in_flight, second.in_flight) == (2, 1)
    assert first.recv_wait_s > second.recv_wait_s > 0


def test_the_accounting_of_every_rank_sums_to_its_wall_time(tmp_path):
    truth = Truth(forward_s=[0.002, 0.002, 0.006, 0.002], cuts=[2], data_s=0.001, after_s=0.002, action_overhead_s=1e-4, noise=0.05)
    for rank in write_run(tmp_path / "r", truth).report().accounting:
        assert sum(rank.states.values()) == pytest.approx(rank.wall_s, abs=1e-9)
        assert rank.states["compute"] > 0
        assert rank.states["host"] > 0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_live_activations_are_what_the_events_show_to_be_held_times_what_the_layers_keep(tmp_path, schedule):
    truth = Truth(forward_s=[0.002] * 4, cuts=[2], sampled=False, micro_batches=4, schedule=schedule)
    facts = [{"name": f"block{i}", "parameter_bytes": 1000, "activation_bytes": 100 * (i + 1)} for i in range(4)]
    first, second = write_run(tmp_path / "r", truth, info_changes={"layer_facts": facts}).report().stages
    assert (first.held, second.held) == (first.in_flight, second.in_flight)
    assert (first.activation_bytes, second.activation_bytes) == (first.held * 300, second.held * 700)
    assert first.held >= second.held >= 1
