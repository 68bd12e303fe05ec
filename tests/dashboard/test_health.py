"""Health in words: who is silent, who holds the run up, what a person should be told."""

import pandas as pd

from dashboard.health import Alert, alerts, hang_report, pulses
from dashboard.memory import read_limits
from pptoolkit.analysis.liveness import Liveness, RunState
from pptoolkit.telemetry import RunInfo, RunStatus
from pptoolkit.telemetry.event_reader import Skipped
from pptoolkit.telemetry.heartbeat import Heartbeat

INFO = RunInfo(run_id="r", status=RunStatus.RUNNING, stage_to_rank=(0, 1, 2), ranks=3)
NOW = 1000.0
STEPS = pd.DataFrame({"step": range(40), "step_time_s": [0.1] * 40})
LOSSES = pd.DataFrame({"step": range(40), "loss": [2.0] * 40})


def beat(rank: int, op: str | None = "forward", *, age_s: float = 0.5, for_s: float = 0.1, **more: object) -> Heartbeat:
    start = None if op is None else NOW - for_s
    body = {"rank": rank, "unix_s": NOW - age_s, "step": 7, "op": op, "stage": rank, "micro_batch": 2, "op_start_unix_s": start, **more}
    return Heartbeat.from_dict(body)


def told(beats: list[Heartbeat], state: RunState = RunState.RUNNING, **changes: object) -> tuple[Alert, ...]:
    known: dict[str, object] = {"skipped": Skipped(), "steps": STEPS, "losses": LOSSES, "uncertainty_s": {}, **changes}
    return alerts(INFO, Liveness(state=state, reason="why"), pulses(INFO, beats, now_unix_s=NOW), **known)  # type: ignore[arg-type]


def test_each_rank_of_the_layout_is_listed_with_what_it_does() -> None:
    found = pulses(INFO, [beat(0), beat(1, "recv", age_s=16)], now_unix_s=NOW)
    assert [(p.rank, p.state) for p in found] == [(0, "alive"), (1, "silent"), (2, "not seen")]
    assert found[0].doing == "computes a forward, micro-batch 2 of stage 0"
    assert found[1].doing == "waits to receive, micro-batch 2 of stage 1"


def test_who_computes_while_the_others_wait_holds_the_run_up() -> None:
    report = hang_report(pulses(INFO, [beat(0, "recv", for_s=40), beat(1, "forward", for_s=41), beat(2, "recv", for_s=39)], now_unix_s=NOW))
    assert report[0] == "Rank 1 computes a forward, micro-batch 2 of stage 1 for 41.0 s: the others may be waiting for it."
    assert len(report) == 3


def test_ranks_that_all_wait_for_each_other_look_like_a_deadlock() -> None:
    report = hang_report(pulses(INFO, [beat(r, "recv", for_s=40 + r) for r in range(3)], now_unix_s=NOW))
    assert "rank 2 longest" in report[-1]
    assert "deadlock" in report[-1]


def test_a_silent_rank_is_named_once() -> None:
    report = hang_report(pulses(INFO, [beat(0), beat(1), beat(2, age_s=60, for_s=61)], now_unix_s=NOW))
    assert report == ("Rank 2 gives no sign of life since 60.0 s; last seen: computes a forward, micro-batch 2 of stage 2.",)


def test_a_run_in_good_health_has_nothing_to_report() -> None:
    assert told([beat(r) for r in range(3)]) == ()


def test_what_a_person_should_know_is_said_the_worst_first() -> None:
    steps = STEPS.assign(step_time_s=[0.1] * 35 + [0.2] * 5)
    losses = LOSSES.assign(loss=[2.0] * 39 + [float("nan")])
    found = told(
        [beat(0, dropped=12), beat(1), beat(2)],
        RunState.STALLED,
        steps=steps,
        losses=losses,
        skipped=Skipped(bytes=100, files=1, notices=("a file is torn",)),
        uncertainty_s={1: 0.05},
    )
    assert [alert.level for alert in found] == ["bad", "bad", "warning", "warning", "warning", "note"]
    texts = "\n".join(alert.text for alert in found)
    for part in (
        "stalled: why",
        "no number since step 39",
        "100 % longer than usual",
        "12 events were dropped on rank 0",
        "a file is torn",
    ):
        assert part in texts
    assert "clock of rank 1 is known to 50.0 ms only" in texts


def test_memory_limits_are_read_from_the_ranks_metrics(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path)) / "metrics"
    folder.mkdir()
    (folder / "rank-00001.prom").write_text(
        'pptoolkit_memory_limit_bytes{kind="host"} 8.0e+09\npptoolkit_memory_limit_bytes{rank="1",kind="device"} 4e+09\n'
    )
    (folder / "rank-00002.prom").write_bytes(b"\xff\x00 nonsense")
    assert read_limits(folder.parent) == {1: 4e9}
