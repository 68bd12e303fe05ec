import threading
import time
from collections.abc import Callable

import pytest

from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.periodic import LONGEST_STRETCH, ROUND_NS, Bubbles, Periodic, interval_for

SHORT_NS = 1_000_000


class Rounds:
    """Work that notes when it is done."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.done = threading.Event()

    def __call__(self) -> None:
        self.times.append(time.monotonic())
        self.done.set()


def start(*work: Callable[[], None], bubbles: Bubbles, interval_s: float) -> Periodic:
    thread = Periodic("work", *work, interval_s=interval_s, drops=Drops(0), bubbles=bubbles)
    thread.start()
    return thread


def wait_until_awaited(bubbles: Bubbles, *, by: int = 1) -> None:
    end = time.monotonic() + 20
    while bubbles._awaited < by and time.monotonic() < end:
        time.sleep(0.005)
    assert bubbles._awaited == by


def test_work_that_is_due_is_done_in_the_next_bubble() -> None:
    work, bubbles = Rounds(), Bubbles()
    thread = start(work, bubbles=bubbles, interval_s=60)  # due at once, and patient for a minute
    wait_until_awaited(bubbles)
    assert work.times == []
    bubbles.announce(SHORT_NS)
    assert work.done.wait(20)
    assert thread.stop()


def test_without_any_bubble_it_is_done_an_interval_later() -> None:
    work = Rounds()
    thread = start(work, bubbles=Bubbles(), interval_s=0.05)
    assert work.done.wait(20)
    assert thread.stop()


def test_who_asks_for_a_round_or_for_the_end_waits_for_no_bubble() -> None:
    work, bubbles = Rounds(), Bubbles()
    thread = start(work, bubbles=bubbles, interval_s=3600)
    wait_until_awaited(bubbles)
    assert thread.run_now(timeout_s=20)
    assert len(work.times) == 1
    assert thread.stop(timeout_s=20)
    assert len(work.times) == 2


def test_a_bubble_that_nobody_waits_for_is_forgotten() -> None:
    work, bubbles = Rounds(), Bubbles()
    for _ in range(3):
        bubbles.announce(SHORT_NS)
    thread = start(work, bubbles=bubbles, interval_s=60)
    wait_until_awaited(bubbles)
    assert work.times == []
    assert thread.stop()


def test_a_bubble_goes_to_as_many_as_fit_into_it_and_to_the_most_patient_first() -> None:
    works, bubbles = [Rounds(), Rounds(), Rounds()], Bubbles()
    threads = []
    for number, work in enumerate(works, start=1):
        threads.append(start(work, bubbles=bubbles, interval_s=60))
        wait_until_awaited(bubbles, by=number)
    bubbles.announce(SHORT_NS)
    assert works[0].done.wait(20)
    wait_until_awaited(bubbles, by=2)
    assert [len(work.times) for work in works] == [1, 0, 0]
    bubbles.announce(2 * ROUND_NS)
    assert works[1].done.wait(20)
    assert works[2].done.wait(20)
    assert all(thread.stop() for thread in threads)


def test_each_part_of_a_round_gets_a_bubble_of_its_own() -> None:
    parts, bubbles = [Rounds(), Rounds()], Bubbles()
    thread = start(*parts, bubbles=bubbles, interval_s=3600)
    wait_until_awaited(bubbles)
    bubbles.announce(SHORT_NS)
    assert parts[0].done.wait(20)
    wait_until_awaited(bubbles)
    assert parts[1].times == []
    bubbles.announce(SHORT_NS)
    assert parts[1].done.wait(20)
    assert thread.stop(timeout_s=20)
    assert [len(part.times) for part in parts] == [2, 2], "the last round has all parts too, and waits for no bubble"


def test_a_part_that_fails_keeps_none_of_the_others_from_their_work() -> None:
    def fail() -> None:
        raise RuntimeError("no luck")

    after = Rounds()
    thread = start(fail, after, bubbles=Bubbles(), interval_s=0.01)
    assert after.done.wait(20)
    assert thread.stop(timeout_s=20)


@pytest.mark.parametrize(
    ("cost_s", "interval_s"),
    [(0.0, 1.0), (0.0005, 1.0), (0.002, 2.0), (0.004, 4.0), (0.05, LONGEST_STRETCH), (10.0, LONGEST_STRETCH)],
)
def test_rounds_become_rarer_where_they_cost_more_than_their_share(cost_s: float, interval_s: float) -> None:
    assert interval_for(1.0, cost_s, 0.001) == pytest.approx(interval_s)
