import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pptoolkit.telemetry.clock import ClockMap, ClockOffset, align, estimate_offset

HOUR_NS = 3600 * 10**9


def exchange(true_offset_ns: int, out_ns: int, back_ns: int, *, at_ns: int = 10**15, work_ns: int = 500) -> tuple[int, int, int, int]:
    """One round trip of a rank whose clock is ``true_offset_ns`` behind rank 0's."""
    t1 = at_ns + out_ns + true_offset_ns
    t2 = t1 + work_ns
    return at_ns, t1, t2, t2 - true_offset_ns + back_ns


def test_an_even_path_gives_the_offset_exactly() -> None:
    offset = estimate_offset([exchange(3_700_000_000, 1000, 1000)])
    assert (offset.offset_ns, offset.uncertainty_ns) == (3_700_000_000, 1000)


@settings(deadline=None)
@given(
    st.integers(-(2**60), 2**60),
    st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 10**7)), min_size=1, max_size=10),
)
def test_the_truth_is_always_within_the_uncertainty(true_offset_ns: int, paths: list[tuple[int, int]]) -> None:
    offset = estimate_offset(exchange(true_offset_ns, out, back) for out, back in paths)
    assert abs(offset.offset_ns - true_offset_ns) <= offset.uncertainty_ns
    assert offset.uncertainty_ns <= max(1, min(out + back for out, back in paths) // 2 + 1)


def test_the_shortest_round_trip_wins() -> None:
    offset = estimate_offset([exchange(5000, 10**6, 9 * 10**6), exchange(5000, 100, 140), exchange(5000, 8 * 10**6, 10)])
    assert abs(offset.offset_ns - 5000) <= 20
    assert offset.uncertainty_ns == 120


def test_no_usable_sample_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        estimate_offset([])
    with pytest.raises(ValueError, match="no usable round trip"):
        estimate_offset([(100, 0, 500, 200)])


def test_a_clock_an_hour_off_is_laid_on_rank_0s() -> None:
    local = np.array([10**15, 10**15 + 7], dtype=np.int64)
    assert align(local, [ClockOffset(10**15, HOUR_NS, 100)]).tolist() == [10**15 + HOUR_NS, 10**15 + HOUR_NS + 7]


def test_drift_between_two_offsets_is_followed_and_held_outside() -> None:
    clock = ClockMap([ClockOffset(2000, 300, 9), ClockOffset(1000, 100, 5)])
    assert (clock.align([0, 1000, 1500, 2000, 9000]) - np.array([0, 1000, 1500, 2000, 9000])).tolist() == [100, 100, 200, 300, 300]
    assert clock.uncertainty([0, 1000, 1500, 2000, 9000]).tolist() == [5, 5, 9, 9, 9]


def test_a_rank_without_offsets_has_rank_0s_clock() -> None:
    assert ClockMap().align([5, 2**62]).tolist() == [5, 2**62]
    assert ClockMap().uncertainty([5]).tolist() == [0]


def test_large_times_keep_every_nanosecond() -> None:
    base, offset = 2**62, -(2**61) + 1
    clock = ClockMap([ClockOffset(base, offset, 1), ClockOffset(base + 10**12, offset + 1000, 1)])
    local = base + np.arange(0, 10**12, 10**11, dtype=np.int64)
    assert clock.align(local).tolist() == [int(t) + offset + 100 * i for i, t in enumerate(local)]


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**12), st.integers(-(10**6), 10**6)), min_size=2, max_size=8, unique_by=lambda o: o[0]))
def test_alignment_stays_between_the_offsets_around_it(known: list[tuple[int, int]]) -> None:
    clock = ClockMap(ClockOffset(at, offset, 1) for at, offset in known)
    offsets = [offset for _, offset in known]
    times = np.linspace(-(10**12), 2 * 10**12, 50).astype(np.int64)
    shift = clock.align(times) - times
    assert shift.min() >= min(offsets)
    assert shift.max() <= max(offsets)


def test_a_disturbed_reading_is_drawn_to_its_sharper_neighbours_and_never_out_of_its_own_uncertainty() -> None:
    # True offset: 1000 + t / 1000; every fourth reading is off by nearly all of its large uncertainty.
    sharp = [ClockOffset(t, 1000 + t // 1000, 10) for t in range(0, 10**6, 10**5) if t % (4 * 10**5)]
    disturbed = [ClockOffset(t, 1000 + t // 1000 + 900, 1000) for t in range(0, 10**6, 4 * 10**5)]
    clock = ClockMap([*sharp, *disturbed])
    times = np.arange(0, 10**6, 10**5)
    error = clock.align(times) - times - (1000 + times // 1000)
    assert np.abs(error[1:]).max() < 50
    assert abs(error[0]) < 150, "at the very end, the line is not continued past what was read"
    # The sharp ones hold what they said; a reading that contradicts all others still keeps its own bound.
    liar = ClockMap([*sharp, ClockOffset(5 * 10**5 + 1, 10**6, 10)])
    assert abs(int(liar.align([5 * 10**5 + 1])[0]) - (5 * 10**5 + 1) - 10**6) <= 10
