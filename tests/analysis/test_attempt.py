import pandas as pd
import pytest

from pptoolkit.analysis.accounting import RankAccount
from pptoolkit.analysis.attempt import account_attempt
from pptoolkit.telemetry import Op
from pptoolkit.telemetry.accounting import STATES
from tests.analysis.events import event, table

NONE = pd.DataFrame({"rank": [], "attempt": [], "step_time_s": []})


def test_the_parts_of_an_attempt_sum_to_its_wall_time():
    #  start-up 0-100 | step 100-140 | (5) | step 145-185 | evaluation 185-205 | checkpoint 205-215 | (1) | step 216-256
    rows = [event(Op.STARTUP, 0, 100, step=-1)]
    rows += [event(Op.STEP, start, start + 40, step=i) for i, start in enumerate((100, 145, 216))]
    rows += [event(Op.EVAL, 185, 205, step=1), event(Op.CHECKPOINT, 205, 215, step=1), event(Op.FORWARD, 186, 190, step=1)]
    states = {**dict.fromkeys(map(str, STATES), 0.0), "compute": 0.039, "unattributed": 0.001}
    (rank,) = account_attempt(table(rows), NONE, (RankAccount(rank=0, wall_s=0.040, states=states),))
    assert rank.parts == pytest.approx({"startup": 0.1, "steps": 0.12, "evaluation": 0.02, "checkpoint": 0.01, "between": 0.006})
    assert sum(rank.parts.values()) == pytest.approx(rank.wall_s) == pytest.approx(0.256)
    assert rank.unattributed_s == pytest.approx(0.003)


def test_an_evaluation_inside_a_step_counts_once():
    rows = [event(Op.STEP, 0, 40), event(Op.EVAL, 10, 20), event(Op.EVAL, 35, 50)]
    (rank,) = account_attempt(table(rows), NONE, ())
    assert rank.parts == pytest.approx({"startup": 0, "steps": 0.04, "evaluation": 0.01, "checkpoint": 0, "between": 0})


def test_steps_whose_events_were_not_kept_are_known_by_the_scalars():
    rows = [event(Op.STEP, 0, 10, step=0), event(Op.STEP, 50, 60, step=5)]
    told = pd.DataFrame({"rank": [0] * 6, "attempt": [0] * 6, "step_time_s": [0.0095] * 6})
    (rank,) = account_attempt(table(rows), told, ())
    assert rank.parts["steps"] == pytest.approx(0.057)
    assert rank.parts["between"] == pytest.approx(0.003)


def test_each_rank_is_accounted_by_its_latest_attempt():
    rows = [event(Op.STEP, 0, 10, rank=0), event(Op.STEP, 100, 120, rank=0, attempt=1), event(Op.STEP, 0, 10, rank=1)]
    assert [(a.rank, a.attempt, a.wall_s) for a in account_attempt(table(rows), NONE, ())] == [(0, 1, 0.02), (1, 0, 0.01)]


def test_without_a_step_there_is_nothing_to_account():
    assert account_attempt(table([event(Op.STARTUP, 0, 100, step=-1)]), NONE, ()) == ()
