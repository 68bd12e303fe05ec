"""What a benchmark prints, for people and for programs."""

import json

from benchmarks.blocks import seconds_per_step
from benchmarks.paired import Estimate
from benchmarks.report import at_most, measured, show, table


def test_a_goal_holds_only_if_the_whole_interval_is_on_its_side():
    good = at_most("step", Estimate(value=0.97, low=0.95, high=0.99), "", goal=1.0)
    lucky = at_most("step", Estimate(value=0.97, low=0.95, high=1.02), "", goal=1.0)
    assert (good.holds, lucky.holds) == (True, False)


def test_json_is_a_list_of_objects_with_the_documented_keys(capsys):
    show([measured("step time", Estimate(value=1.0, low=0.9, high=1.1), "s")], as_json=True)
    (found,) = json.loads(capsys.readouterr().out)
    assert found == {"name": "step time", "value": 1.0, "low": 0.9, "high": 1.1, "unit": "s", "goal": None, "holds": None}


def test_the_table_shows_value_interval_goal_and_verdict():
    text = table([at_most("share", Estimate(value=0.4, low=0.2, high=1.3), "%", goal=1.0)])
    assert "0.4" in text
    assert "0.2 to 1.3" in text
    assert "upper bound <= 1 %" in text
    assert text.rstrip().endswith("NO")


def test_a_step_is_over_when_its_last_rank_is_done_and_the_warm_up_does_not_count():
    #        block      step 1     step 2     end        (each rank's clock at the beginning of its step, in seconds)
    first = [0, 9_000_000_000, 10_000_000_000, 11_000_000_000]
    second = [0, 8_000_000_000, 10_500_000_000, 12_000_000_000]
    assert seconds_per_step([first, second]) == (12 - 9) / 2
