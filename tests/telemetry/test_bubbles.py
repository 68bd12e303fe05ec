import threading
import time

from pptoolkit.telemetry.drops import Drops
from pptoolkit.telemetry.periodic import ROUND_NS, Bubbles, Periodic

SHORT_NS = 1_000_000


class Rounds:
    """Work that notes when it is done."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.done = threading.Event()

    def __call__(self) -> None:
        self.times.append(time.monotonic())
        self.done.set()


def start(work: Rounds, bubbles: Bubbles, *, interval_s: float) -> Periodic:
    thread = Periodic("work", work, interval_s=interval_s, drops=Drops(0), bubbles=bubbles)
    thread.start()
    return thread


def wait_until_awaited(bubbles: Bubbles, *, by: int = 1) -> None:
    end = time.monotonic() + 20
    while bubbles._awaited < by and time.monotonic() < end:
        time.sleep(0.005)
    assert bubbles._awaited == by


def test_work_that_is_due_is_done_in_the_next_bubble() -> None:
    work, bubbles = Rounds(), Bubbles()
    thread = start(work, bubbles, interval_s=60)  # due at once, and patient for a minute
    wait_until_awaited(bubbles)
    assert work.times == []
    bubbles.announce(SHORT_NS)
    assert work.done.wait(20)
    assert thread.stop()


def test_without_any_bubble_it_is_done_an_interval_later() -> None:
    work = Rounds()
    thread = start(work, Bubbles(), interval_s=0.05)
    assert work.done.wait(20)
    assert thread.stop()


def test_who_asks_for_a_round_or_for_the_end_waits_for_no_bubble() -> None:
    work, bubbles = Rounds(), Bubbles()
    thread = start(work, bubbles, interval_s=3600)
    wait_until_awaited(bubbles)
    assert thread.run_now(timeout_s=20)
    assert len(work.times) == 1
    assert thread.stop(timeout_s=20)
    assert len(work.times) == 2


def test_a_bubble_that_nobody_waits_for_is_forgotten() -> None:
    work, bubbles = Rounds(), Bubbles()
    for _ in range(3):
        bubbles.announce(SHORT_NS)
    thread = start(work, bubbles, interval_s=60)
    wait_until_awaited(bubbles)
    assert work.times == []
    assert thread.stop()


def test_a_bubble_goes_to_as_many_as_fit_into_it_and_to_the_most_patient_first() -> None:
    works, bubbles = [Rounds(), Rounds(), Rounds()], Bubbles()
    threads = []
    for number, work in enumerate(works, start=1):
        threads.append(start(work, bubbles, interval_s=60))
        wait_until_awaited(bubbles, by=number)
    bubbles.announce(SHORT_NS)
    assert works[0].done.wait(20)
    wait_until_awaited(bubbles, by=2)
    assert [len(work.times) for work in works] == [1, 0, 0]
    bubbles.announce(2 * ROUND_NS)
    assert works[1].done.wait(20)
    assert works[2].done.wait(20)
    assert all(thread.stop() for thread in threads)
