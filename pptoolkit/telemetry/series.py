"""Series of Prometheus metrics that cost the training little: written without a lock, turned into text when somebody asks.

Each series has one writer. A scrape, from another thread, sees a value before or after a change, never half of one.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

PREFIX = "pptoolkit_"
Labels = tuple[str, ...]
Numbers = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
LateGauges = Callable[[], Iterable[tuple[Labels, float]]]


class SeriesTable(Collector):
    """Named gauges and counters with labels. Changing one is a dictionary assignment.

    A series exists only once its value is known: a loss of 0 before the first step would be a lie, NaN would raise an alert.

    Args:
        registry: Where they are exported.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._families: dict[str, tuple[type[GaugeMetricFamily | CounterMetricFamily], str, Labels]] = {}
        self._values: dict[str, dict[Labels, float]] = {}
        self._late: dict[str, LateGauges] = {}
        registry.register(self)

    def gauge(self, name: str, documentation: str, labels: Labels = ()) -> None:
        """Declare a gauge."""
        self._declare(GaugeMetricFamily, name, documentation, labels)

    def counter(self, name: str, documentation: str, labels: Labels = (), *, series: Iterable[Labels] = ((),)) -> None:
        """Declare a counter, given without ``_total``, and the series that count from 0."""
        self._declare(CounterMetricFamily, name, documentation, labels)
        self._values[name].update(dict.fromkeys(series, 0.0))

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set the series of ``name`` with these label values, in the order of declaration."""
        self._values[name][labels] = float(value)

    def set_late(self, name: str, values: LateGauges) -> None:
        """Set series of a gauge to what ``values`` returns when somebody asks; it is called in that thread."""
        self._late[name] = values

    def add(self, name: str, amount: float, *labels: str) -> None:
        """Count ``amount`` up; what is negative is no count and passed over."""
        if amount > 0:
            values = self._values[name]
            values[labels] = values.get(labels, 0.0) + float(amount)

    def get(self, name: str, *labels: str) -> float | None:
        """Return the value, or None while it is unknown."""
        return self._values[name].get(labels)

    def collect(self) -> Iterator[Metric]:
        for name, (family_type, documentation, labels) in self._families.items():
            family = family_type(PREFIX + name, documentation, labels=labels)
            values = self._values[name].copy()
            if name in self._late:
                values.update(self._late[name]())
            for labels_of_one, value in values.items():
                family.add_metric(labels_of_one, value)
            yield family

    def _declare(self, family: type[GaugeMetricFamily | CounterMetricFamily], name: str, documentation: str, labels: Labels) -> None:
        self._families[name] = (family, documentation, labels)
        self._values[name] = {}


class HistogramTable(Collector):
    """One histogram family with a fixed list of series, which takes many values at a time.

    Args:
        registry: Where it is exported.
        name: Its name.
        documentation: Its help text.
        bounds: Upper bounds of its buckets, ascending, without infinity.
        labels: Names of its labels.
        series: Label values of each series.
        example: Names of the numbers that tell where a value comes from. OpenMetrics shows them for the newest of a series.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        name: str,
        documentation: str,
        *,
        bounds: Sequence[float],
        labels: Labels = (),
        series: Sequence[Labels] = ((),),
        example: Labels = (),
    ) -> None:
        self._name, self._documentation, self._labels, self._series = PREFIX + name, documentation, labels, list(series)
        self._bounds = np.asarray(bounds, dtype=np.float64)
        self._les = [*(f"{bound:g}" if bound < 1 else f"{bound:.1f}" for bound in bounds), "+Inf"]
        # Replaced as a whole, so that a scrape never sees counts and sums of different moments.
        self._state = np.zeros((len(series), len(bounds) + 1), dtype=np.int64), np.zeros(len(series))
        self._example = example
        self._newest = np.full((len(series), 1 + len(example)), np.nan)  # value and where it comes from; NaN: none yet
        registry.register(self)

    def observe(self, values: Numbers, series: Indices | int = 0, examples: Sequence[Indices] = ()) -> None:
        """Take values in, each of the series with that place in the list; ``examples``: where each of them comes from."""
        series = np.broadcast_to(series, len(values))
        counts, sums = self._state
        cells = series * counts.shape[1] + np.searchsorted(self._bounds, values, side="left")
        counts = counts + np.bincount(cells, minlength=counts.size).reshape(counts.shape)
        self._state = counts, sums + np.bincount(series, weights=values, minlength=len(sums))
        if examples:
            # Of several values for one series numpy keeps the last, which is the newest.
            self._newest[series] = np.stack([values, *examples], axis=1)

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        (counts, sums), newest = self._state, self._newest.copy()
        for labels, in_buckets, total, (value, *numbers) in zip(self._series, counts, sums, newest, strict=True):
            marked = -1 if np.isnan(value) else int(np.searchsorted(self._bounds, value, side="left"))
            buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = list(
                zip(self._les, np.cumsum(in_buckets).tolist(), strict=True)
            )
            if marked >= 0:
                origin = {name: str(int(number)) for name, number in zip(self._example, numbers, strict=True)}
                buckets[marked] = (*buckets[marked][:2], Exemplar(origin, value))
            family.add_metric(labels, buckets=buckets, sum_value=float(total))
        yield family
