import pytest

from pptoolkit.analysis.liveness import RunState, judge_liveness
from pptoolkit.telemetry import RunInfo, RunStatus
from pptoolkit.telemetry.heartbeat import Heartbeat

START = 1_000_000.0


def judge(status=RunStatus.RUNNING, beats=(), *, now, progress=0.0, step_time=0.0, ranks=2):
    info = RunInfo(run_id="r", status=status, ranks=ranks, created_unix_s=START, message="why")
    return judge_liveness(info, beats, now_unix_s=START + now, progress_unix_s=START + progress, step_time_s=step_time)


def beat(rank, at, *, step=5, op="forward", since=None, micro_batch=3):
    started = None if since is None else START + since
    return Heartbeat(status="running", rank=rank, unix_s=START + at, step=step, op=op, op_start_unix_s=started, micro_batch=micro_batch)


@pytest.mark.parametrize("status", [RunStatus.FINISHED, RunStatus.FAILED, RunStatus.STOPPED])
def test_how_a_run_ended_is_the_launchers_word(status):
    found = judge(status, [beat(0, 5)], now=1e6)
    assert (found.state.value, found.reason) == (status.value, "why")


def test_before_the_start_a_run_waits():
    assert judge(RunStatus.WAITING, now=1e6).state is RunState.WAITING


def test_starting_processes_get_time_and_then_count_as_stalled():
    assert judge(now=60).state is RunState.RUNNING
    found = judge(now=200)
    assert found.state is RunState.STALLED
    assert "no rank has given a sign of life" in found.reason


def test_fresh_heartbeats_and_steps_are_running():
    assert judge(beats=[beat(0, 99), beat(1, 99)], now=100, progress=98).state is RunState.RUNNING


def test_a_killed_rank_is_named_with_what_it_did_last():
    found = judge(beats=[beat(0, 99), beat(1, 60)], now=100, progress=60)
    assert found.state is RunState.STALLED
    assert found.reason == "rank 1 has given no sign of life for 40 s, last seen in forward (step 5, micro-batch 3)"


def test_a_rank_that_never_came_up_is_named():
    found = judge(beats=[beat(0, 199)], now=200, progress=199)
    assert found.state is RunState.STALLED
    assert "rank 1 has not given" in found.reason


def test_alive_without_progress_is_a_hang_and_names_the_rank_that_is_stuck_longest():
    found = judge(beats=[beat(0, 99, op="recv", since=61), beat(1, 99, op="forward", since=60)], now=100, progress=55)
    assert found.state is RunState.STALLED
    assert "rank 1 longest, last seen in forward" in found.reason


def test_a_slow_micro_batch_is_not_a_hang():
    assert (
        judge(beats=[beat(0, 99, op="recv", since=79), beat(1, 99, op="forward", since=80)], now=100, progress=55).state is RunState.RUNNING
    )


def test_steps_of_a_minute_get_their_minutes():
    beats = [beat(0, 99, since=40), beat(1, 99, since=40)]
    assert judge(beats=beats, now=100, progress=10, step_time=60).state is RunState.RUNNING


def test_heartbeats_of_an_earlier_attempt_say_nothing():
    assert judge(beats=[beat(0, -500), beat(1, -500)], now=10).state is RunState.RUNNING


def test_ranks_that_closed_in_good_order_are_not_missed():
    closed = [Heartbeat(rank=rank, unix_s=START + 50, status="finished") for rank in (0, 1)]
    found = judge(beats=closed, now=100, progress=50)
    assert (found.state, found.reason) == (RunState.RUNNING, "the processes are ending")


def test_a_wall_clock_that_was_set_back_makes_nobody_look_dead():
    # Set back by an hour 100 s after the start; the ranks' heartbeats go on with the new time.
    assert judge(beats=[beat(0, -3500.5, since=-3501), beat(1, -3500.5, since=-3501)], now=-3500, progress=99).state is RunState.RUNNING


def test_a_hang_after_the_wall_clock_was_set_back_is_still_seen():
    beats = [beat(0, -3401, op="recv", since=-3461), beat(1, -3401, op="forward", since=-3462)]
    found = judge(beats=beats, now=-3400, progress=99)
    assert found.state is RunState.STALLED
    assert "rank 1 longest" in found.reason
