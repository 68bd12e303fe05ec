"""Gauges that exist only once their value is known: a loss of 0 before the first step would be a lie, NaN would raise an alert."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "pptoolkit_"


class GaugeTable(Collector):
    """Named gauges with labels. Setting one is a dictionary assignment, so any thread may do it.

    Args:
        registry: Where the gauges are exported.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._values: dict[str, dict[tuple[str, ...], float]] = {}
        registry.register(self)

    def declare(self, name: str, documentation: str, labels: tuple[str, ...] = ()) -> None:
        """Add a gauge; it has no series until it is set."""
        self._families[name] = (documentation, labels)
        self._values[name] = {}

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the series of ``name`` with these label values, in the order of declaration."""
        self._values[name][labels] = float(value)

    def get(self, name: str, *labels: str) -> float | None:
        """Return the value, or None while it is unknown."""
        return self._values[name].get(labels)

    def collect(self) -> Iterator[Metric]:
        for name, (documentation, labels) in self._families.items():
            family = GaugeMetricFamily(PREFIX + name, documentation, labels=labels)
            for values, value in self._values[name].copy().items():
                family.add_metric(values, value)
            yield family
