"""Reads the signed-rank test's critical value off an interval, for comparison with printed tables."""

from benchmarks.paired import location


def critical_value(count: int) -> int:
    """Return how many of the sorted pair means ``location`` leaves out at the lower end."""
    values = [3.0**i for i in range(count)]  # so spread that no two pair means are equal
    means = sorted((values[i] + values[j]) / 2 for i in range(count) for j in range(i, count))
    return means.index(location(values).low)
