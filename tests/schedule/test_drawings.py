"""The generators draw the pictures of their papers, and the pictures in their docstrings are what they draw."""

import re
from types import ModuleType

import pytest

from pptoolkit.schedule import (
    SCHEDULES,
    build_schedule,
    dualpipev,
    format_order,
    forward_only,
    gpipe,
    interleaved,
    looped_bfs,
    one_f_one_b,
    zb_h1,
    zbv,
)
from tests.schedule.drawing import PAGE, draw, draw_all


def grid(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches", "picture"),
    [
        (
            "gpipe",
            3,
            3,
            """
            F0 F1 F2 .. .. .. .. B0 B1 B2
            .. F0 F1 F2 .. .. B0 B1 B2
            .. .. F0 F1 F2 B0 B1 B2
            """,
        ),
        (
            "1f1b",
            4,
            6,
            """
            F0 F1 F2 F3 .. .. .. B0 F4 B1 F5 B2 .. B3 .. B4 .. B5
            .. F0 F1 F2 .. .. B0 F3 B1 F4 B2 F5 B3 .. B4 .. B5
            .. .. F0 F1 .. B0 F2 B1 F3 B2 F4 B3 F5 B4 .. B5
            .. .. .. F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
            """,
        ),
        (
            "1f1b",  # fewer micro-batches than stages
            4,
            2,
            """
            F0 F1 .. .. .. .. .. B0 .. B1
            .. F0 F1 .. .. .. B0 .. B1
            .. .. F0 F1 .. B0 .. B1
            .. .. .. F0 B0 F1 B1
            """,
        ),
        (
            "zb-h1",
            3,
            4,
            """
            F0 F1 F2 .. .. I0 W0 F3 I1 W1 I2 W2 I3 W3
            .. F0 F1 .. I0 F2 I1 W0 F3 I2 W1 I3 W2 W3
            .. .. F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3
            """,
        ),
        (
            "forward",
            3,
            2,
            """
            F0 F1
            .. F0 F1
            .. .. F0 F1
            """,
        ),
    ],
)
def test_a_schedule_of_one_stage_a_rank_matches_the_drawing(name: str, ranks: int, micro_batches: int, picture: str) -> None:
    assert draw(build_schedule(name, ranks=ranks, micro_batches=micro_batches)) == grid(picture)


def test_one_f_one_b_with_backwards_twice_as_long_matches_the_drawing() -> None:
    picture = """
    F0 F1 F2 .. .. .. .. B0 -- F3 B1 -- .. B2 -- .. B3 --
    .. F0 F1 .. .. B0 -- F2 B1 -- F3 B2 -- .. B3 --
    .. .. F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 --
    """
    assert draw(build_schedule("1f1b", ranks=3, micro_batches=4), backward=2) == grid(picture)


@pytest.mark.parametrize(
    ("name", "micro_batches", "picture"),
    [
        (
            "looped-bfs",
            2,
            """
            0F0 0F1 2F0 2F1 ... ... 2B0 2B1 0B0 0B1
            ... 1F0 1F1 3F0 3F1 3B0 3B1 1B0 1B1
            """,
        ),
        (
            "interleaved-1f1b",
            4,
            """
            0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 ... 2B2 ... 2B3 0B2 0B3
            ... 1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3
            """,
        ),
        (
            "interleaved-1f1b",  # a number that does not divide by the ranks: one group of three
            3,
            """
            0F0 0F1 0F2 2F0 2F1 2F2 2B0 ... 2B1 ... 2B2 0B0 0B1 0B2
            ... 1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2
            """,
        ),
        (
            "interleaved-zb",
            4,
            """
            0F0 0F1 2F0 2F1 ... 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
            ... 1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3
            """,
        ),
        (
            "zbv",
            4,
            """
            0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3
            ... 1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
            """,
        ),
        (
            "dualpipev",
            5,
            """
            0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 0F4 3B2 3F3 0B1 3B3 3F4 0B2 3B4 0I3 0W3 0I4 0W4
            ... 1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 1F4 2B2 2F4 1B2 2B3 1B3 2I4 1I4 2W4 1W4
            """,
        ),
    ],
)
def test_a_schedule_of_two_stages_a_rank_matches_the_drawing(name: str, micro_batches: int, picture: str) -> None:
    assert draw(build_schedule(name, ranks=2, micro_batches=micro_batches), stages=True) == grid(picture)


@pytest.mark.parametrize(
    ("module", "name", "ranks", "micro_batches"),
    [
        (gpipe, "gpipe", 3, 3),
        (one_f_one_b, "1f1b", 3, 4),
        (zb_h1, "zb-h1", 3, 4),
        (forward_only, "forward", 3, 2),
        (looped_bfs, "looped-bfs", 2, 2),
        (interleaved, "interleaved-1f1b", 2, 4),
        (zbv, "zbv", 2, 4),
        (dualpipev, "dualpipev", 2, 4),
    ],
)
def test_the_picture_in_the_docstring_is_what_the_generator_draws(module: ModuleType, name: str, ranks: int, micro_batches: int) -> None:
    schedule = build_schedule(name, ranks=ranks, micro_batches=micro_batches)
    rows = re.findall(r"^    rank \d   (.*)$", module.__doc__ or "", re.MULTILINE)
    assert rows == draw(schedule, stages=schedule.stages > ranks).splitlines()


@pytest.mark.parametrize(
    ("stage", "order"), [(0, "F0 F1 F2 B0 F3 B1 B2 B3"), (1, "F0 F1 B0 F2 B1 F3 B2 B3"), (2, "F0 B0 F1 B1 F2 B2 F3 B3")]
)
def test_one_f_one_b_orders_each_rank_as_the_diagram_does(stage: int, order: str) -> None:
    assert format_order(build_schedule("1f1b", ranks=3, micro_batches=4).orders[stage]) == order


def test_the_page_of_schedules_shows_every_schedule_as_its_generator_draws_it() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(f"<!-- drawing: {name} " in page for name in SCHEDULES)
    assert page == draw_all(page), "docs/schedules.md is not what the generators draw; run python -m tests.schedule.drawing"
