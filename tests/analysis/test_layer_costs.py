from dataclasses import replace

import pytest

from pptoolkit.analysis.layer_costs import mean_over_median, measure_layer_costs
from pptoolkit.analysis.layer_table import read_layers, write_layers
from pptoolkit.errors import RunError
from pptoolkit.telemetry import Op
from tests.analysis.synthetic_run import Truth, write_run

UNEVEN = Truth(forward_s=[0.010, 0.001, 0.002, 0.003, 0.004, 0.009], cuts=[2, 4], noise=0.02, steps=40)


def test_layer_costs_recover_the_truth_in_spite_of_slower_sampled_ops(tmp_path):
    costs = write_run(tmp_path / "r", UNEVEN).layer_costs()
    assert [c.forward.median for c in costs.layers] == pytest.approx(UNEVEN.forward_s, rel=0.03)
    assert [c.backward.median for c in costs.layers] == pytest.approx(UNEVEN.backwards, rel=0.03)
    assert not costs.missing
    assert costs.samples == 39
    for factors in costs.calibration.values():  # sampled ops took 3 % longer
        assert factors == pytest.approx((1 / 1.03, 1 / 1.03), rel=0.02)


def test_the_layers_of_a_stage_sum_to_what_its_unsampled_ops_take(tmp_path):
    exact = Truth(forward_s=[0.010, 0.001, 0.002, 0.003], cuts=[2], sampling_cost=0.5)
    costs = write_run(tmp_path / "r", exact).layer_costs()
    assert [sum(c.compute_s for c in costs.layers[a:b]) for a, b in ((0, 2), (2, 4))] == pytest.approx([0.033, 0.015], rel=1e-5)


def test_intervals_hold_the_median(tmp_path):
    for layer in write_run(tmp_path / "r", UNEVEN).layer_costs().layers:
        assert layer.forward.low <= layer.forward.median <= layer.forward.high
        assert layer.backward.low < layer.backward.high


def test_layers_that_were_never_timed_are_named_with_the_remedy(tmp_path):
    costs = write_run(tmp_path / "r", Truth(forward_s=[0.001] * 4, cuts=[2], sampled=False)).layer_costs()
    assert len(costs.missing) == 4
    assert costs.missing[0].startswith("the forward of block0, block1 (stage 0) was never timed alone")
    assert "train some more steps" in costs.missing[0]


def test_a_stage_of_one_layer_needs_no_samples(tmp_path):
    costs = write_run(tmp_path / "r", Truth(forward_s=[0.001, 0.003], cuts=[1], sampled=False)).layer_costs()
    assert not costs.missing
    assert [c.forward.median for c in costs.layers] == pytest.approx([0.001, 0.003])


def test_a_stage_without_backward_costs_nothing_there(tmp_path):
    run = write_run(tmp_path / "r", Truth(forward_s=[0.001] * 4, cuts=[2]))
    steady = run.steady()
    gone = [int(Op.BACKWARD), int(Op.LAYER_BACKWARD)]
    frozen = steady.events[~((steady.events["stage"] == 0) & steady.events["op"].isin(gone))]
    costs = measure_layer_costs(replace(steady, events=frozen), run.info)
    assert not costs.missing
    assert [c.backward.median for c in costs.layers] == pytest.approx([0, 0, 0.002, 0.002])


def test_layers_arrow_gives_back_what_was_written(tmp_path):
    costs = write_run(tmp_path / "r", UNEVEN).layer_costs()
    write_layers(tmp_path / "layers.arrow", costs)
    assert read_layers(tmp_path / "layers.arrow").layers == costs.layers
    assert [p.name for p in tmp_path.glob(".*partial")] == []


@pytest.mark.parametrize(("content", "words"), [(None, "there are no layer costs"), (b"ARROW1 torn", "cannot read the layer costs")])
def test_a_missing_or_torn_layers_arrow_is_a_run_error(tmp_path, content, words):
    path = tmp_path / "layers.arrow"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match=words):
        read_layers(path)


def test_layers_arrow_in_a_folder_that_is_gone_is_a_run_error(tmp_path):
    costs = write_run(tmp_path / "r", UNEVEN).layer_costs()
    with pytest.raises(RunError, match="cannot write the layer costs"):
        write_layers(tmp_path / "gone" / "layers.arrow", costs)


def test_late_ops_on_one_rank_do_not_look_like_work_of_its_layers(tmp_path):
    run = write_run(tmp_path / "r", Truth(forward_s=[0.004] * 4, cuts=[2], sampling_cost=0.0))
    steady = run.steady()
    late = (steady.events["op"] == int(Op.FORWARD)) & (steady.events["stage"] == 0) & (steady.events["micro_batch"] % 4 == 1)
    events = steady.events.assign(end_ns=steady.events["end_ns"] + late * 20_000_000)
    disturbed = replace(steady, events=events)
    costs = measure_layer_costs(disturbed, run.info)
    assert [c.forward.median for c in costs.layers] == pytest.approx([0.004] * 4, rel=1e-3)
    # A quarter of the forwards of one of two equal stages takes 28 ms instead of 8: 5 ms more on average, of 48 ms in all.
    assert mean_over_median(disturbed) == pytest.approx(1 + 5 / 48, rel=1e-3)
    assert mean_over_median(steady) == pytest.approx(1.0, abs=1e-6)
