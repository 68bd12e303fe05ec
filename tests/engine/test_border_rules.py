"""What is refused, what inference leaves alone, and what is recorded of the borders."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch

from pptoolkit.engine.layers import Layer
from pptoolkit.engine.wiring import Wiring
from pptoolkit.errors import ConfigError
from pptoolkit.telemetry import Event, Op
from tests.engine import border_cases as cases
from tests.engine import models
from tests.support.ranks import RankPool

Pools = Callable[[int], RankPool]


@pytest.mark.case("S6")
@pytest.mark.parametrize(("case", "kind"), [("a text crosses", "str"), ("a number crosses", "float")])
def test_something_else_than_tensors_across_a_border_is_refused_with_stage_layer_and_type(pool: Pools, case: str, kind: str) -> None:
    first, second = pool(2).run(cases.refused, case)
    assert first[0] == second[0] == "TrainingError"
    for text in ("stage 0", "'strange'", kind, "move the cut"):
        assert text in first[1]
        assert text in second[1]


def test_a_layer_that_fails_on_one_rank_stops_all_before_the_step(pool: Pools) -> None:
    told = pool(4).run(cases.refused, "a layer fails")
    assert [kind for kind, _ in told] == ["TrainingError"] * 3 + ["StageError"]
    assert all("stage 3" in text and "no such thing" in text for _, text in told)


def test_a_change_in_place_right_behind_a_cut_is_refused_with_its_remedy(pool: Pools) -> None:
    for _, text in pool(2).run(cases.refused, "a change in place", cuts=(2,)):
        assert "stage 1" in text
        assert "inplace=False" in text


def test_a_missing_batch_input_is_named_with_its_layer(pool: Pools) -> None:
    for kind, text in pool(2).run(cases.refused, "an unknown input"):
        assert kind == "DataError"
        assert "'l1' takes 'mask'" in text


def test_a_shape_that_depends_on_numbers_is_refused_where_it_would_cross(pool: Pools) -> None:
    ((kind, text),) = pool(1).run(cases.refused, "a changing shape", cuts=(1,), schedule="looped-bfs")
    assert kind == "StageError"
    assert "stage 0, micro-batch 0" in text
    assert "[2, 3]" in text
    assert "[2, 6]" in text


@pytest.mark.parametrize("case", ["an unknown tie", "a tie of another shape"])
def test_a_tie_that_fits_nothing_is_refused_on_every_rank_with_both_names(pool: Pools, case: str) -> None:
    for kind, text in pool(2).run(cases.refused, case):
        assert kind == "ConfigError"
        assert "l3.linear.weight" in text
        assert "l0.linear." in text


def test_names_that_lead_nowhere_are_refused_before_anything_is_built() -> None:
    with pytest.raises(ConfigError, match=r"'l1' takes 'late', which layer 'l3' provides later"):
        Wiring.of(cases.REFUSED["a skip that leads back"]())
    with pytest.raises(ConfigError, match=r"'a' and 'b' both provide 'x'"):
        Wiring.of([Layer("a", models.Dense, provides="x"), Layer("b", models.Dense, provides="x")])
    with pytest.raises(ConfigError, match=r"no layer has that name"):
        Wiring.of([Layer("a", models.Dense, tie={"w": "c.w"})])
    with pytest.raises(ConfigError, match=r"lead in a circle"):
        Wiring.of([Layer("a", models.Dense, tie={"w": "b.w"}), Layer("b", models.Dense, tie={"w": "a.w"})])


def test_a_tie_to_a_tied_parameter_leads_to_its_owner() -> None:
    layers = [Layer("a", models.Dense), Layer("b", models.Dense, tie={"w": "a.w"}), Layer("a.b", models.Dense, tie={"w": "b.w"})]
    assert [(t.layer, t.owner) for t in Wiring.of(layers).ties] == [(1, 0), (2, 0)]


def test_a_plan_that_only_runs_forward_is_refused(pool: Pools) -> None:
    ((kind, text),) = pool(1).run(cases.refused, "a text crosses", schedule="forward", cuts=())
    assert (kind, "trains nothing" in text) == ("PlanError", True)


@pytest.mark.parametrize("ranks", [1, 2])
def test_inference_leaves_counters_tables_buffers_and_random_numbers_as_they_were(pool: Pools, ranks: int) -> None:
    told = pool(ranks).run(cases.asking)
    assert told[0]["after"] == (0, [], None, 0.0)
    assert told[0]["ran"] == (4, 4.0)  # two micro-batches in each of two steps
    assert [len(t["warnings"]) for t in told] == [1] + [0] * (ranks - 1)
    assert "cannot be run on shapes alone" in told[0]["warnings"][0]
    assert all(t["known"] == 1 for t in told)
    generator = torch.Generator().manual_seed(3)
    assert told[0]["drawn"] == float(torch.rand((), generator=generator, dtype=torch.float64))


def test_the_bytes_of_an_event_are_those_of_all_tensors_of_the_message(pool: Pools) -> None:
    first, second = (
        [Event(*row) for row in rows] for rows in pool(2).run(cases.events, "tuple of kinds", schedule="1f1b", micro_batches=3, cuts=1)
    )
    floats, kinds = 2 * models.WIDTH * 8, 2 * 8 + 2 * models.WIDTH  # two samples a micro-batch
    for events, op in ((first, Op.SEND), (second, Op.RECV)):
        assert {e.bytes for e in events if e.op == op} == {2 * floats + kinds}  # the spare tensor too
    for events, op in ((second, Op.SEND), (first, Op.RECV)):
        assert {e.bytes for e in events if e.op == op} == {2 * floats}


def test_freezing_after_the_first_step_is_noticed(pool: Pools) -> None:
    refused, after = pool(1).run(cases.freezes_later)[0]
    assert "forget_shapes" in refused
    assert after


def test_buffers_of_lengths_that_do_not_come_again_are_dropped(pool: Pools) -> None:
    first, second = pool(2).run(cases.bytes_kept, (16, 64, 128, 16))
    for told in (first, second):
        assert told[0] == told[3] < told[1] < told[2]


@pytest.mark.parametrize("schedule", ["zb-h1", "zbv"])
def test_both_parts_of_a_split_backward_are_recorded_and_its_layers_are_timed(pool: Pools, schedule: str) -> None:
    for rows in pool(2).run(cases.events, "plain", schedule=schedule, micro_batches=4, cuts=2 if schedule == "zbv" else 1):
        events = [Event(*row) for row in rows]
        counts = Counter(Op(e.op) for e in events)
        stages = {e.stage for e in events if e.stage >= 0}
        assert counts[Op.BACKWARD_INPUT] == counts[Op.BACKWARD_WEIGHT] == counts[Op.FORWARD] == 4 * len(stages)
        assert counts[Op.LAYER_FORWARD] == counts[Op.LAYER_BACKWARD] == 4
        for layer in (e for e in events if e.op == Op.LAYER_BACKWARD):
            part = Op.BACKWARD_WEIGHT if layer.stage == 0 else Op.BACKWARD_INPUT
            (whole,) = (e for e in events if (e.op, e.stage, e.micro_batch) == (part, layer.stage, 1))
            assert whole.start_ns <= layer.start_ns <= layer.end_ns <= whole.end_ns


def test_nothing_is_sent_back_behind_frozen_layers(pool: Pools) -> None:
    for rows in pool(2).run(cases.events, "frozen first half", schedule="1f1b", micro_batches=4, cuts=1):
        counts = Counter(Op(Event(*row).op) for row in rows)
        assert counts[Op.SEND] + counts[Op.RECV] == 4


def test_the_sum_of_tied_gradients_is_one_reduction_a_step(pool: Pools) -> None:
    tied = (models.VOCABULARY * models.WIDTH + models.WIDTH * models.WIDTH) * 8
    for rows in pool(2).run(cases.events, "tied to the embedding", schedule="1f1b", micro_batches=4, cuts=1):
        assert [e.bytes for e in (Event(*row) for row in rows) if e.op == Op.REDUCE] == [tied]


def test_a_layer_s_border_counts_the_skip_connections_that_go_past_it(pool: Pools) -> None:
    told = {name: size for facts in pool(2).run(cases.boundary_bytes, "skips") for name, size in facts.items()}
    one = 2 * models.WIDTH * 8
    #                l0: early is the output  l1: early + pair  l2: early + pair (one of it is the output)  ...  l7: nothing but the output
    assert [told[f"l{i}"] // one for i in range(8)] == [1, 3, 3, 4, 4, 4, 1, 1]
