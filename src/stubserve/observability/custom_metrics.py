"""The metrics that models make, as the server keeps them. Names and texts are upstream's.

They live here and not in the stubs, so that instances and models which make the same metric share it, and so that it
can be read whatever the stubs are doing. A family is known by its name, a series in it by its labels. Each exists as
long as it has an owner, and keeps the description and buckets of its first owner; later ones are ignored.
"""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence

from stubserve.errors import invalid

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

Labels = tuple[tuple[str, str], ...]

_METRIC_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Series:
    """One metric: a number, or, with `bounds`, a histogram with a count per bucket and one above the last."""

    def __init__(self, labels: Labels, bounds: Sequence[float] | None = None) -> None:
        self.labels = labels
        self.owners = 0
        # For a histogram: the sum of all values
        self.value = 0.0
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1) if bounds is not None else []

    def observe(self, value: float) -> None:
        """Counts one value of a histogram; a bucket includes its bound."""
        assert self.bounds is not None
        self.value += value
        self.counts[bisect.bisect_left(self.bounds, value)] += 1


class Family:
    """Metrics of one name; `kind` is one of COUNTER, GAUGE, HISTOGRAM."""

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name
        self.description = description
        self.kind = kind
        self.owners = 0
        self.series: dict[Labels, Series] = {}


class MetricRegistry:
    """All families that models made. `reserved` are the server's own names, with their kinds.

    `sources` are called before the metrics are read, to take in pending changes.
    """

    def __init__(self, reserved: Mapping[str, str]) -> None:
        self._reserved = reserved
        self._families: dict[str, Family] = {}
        self.sources: set[Callable[[], None]] = set()

    def families(self) -> list[Family]:
        for source in tuple(self.sources):
            source()
        return list(self._families.values())

    def open_family(self, name: str, description: str, kind: str) -> Family:
        """The family of that name with one more owner. Raises ServeError for a bad name or another kind."""
        if _METRIC_NAME.fullmatch(name) is None:
            raise invalid("Invalid metric name")
        family = self._families.get(name)
        if (family.kind if family is not None else self._reserved.get(name, kind)) != kind:
            raise invalid("Family name already exists with different type")
        if family is None:
            family = self._families[name] = Family(name, description, kind)
        family.owners += 1
        return family

    def close_family(self, family: Family) -> None:
        """One owner needs the family no more; it goes with the last."""
        family.owners -= 1
        if not family.owners:
            del self._families[family.name]

    def open_series(self, family: Family, labels: Mapping[str, str], bounds: Sequence[float] | None) -> Series:
        """The series with these labels, with one more owner. Raises ServeError for bad labels or buckets."""
        for label in labels:
            if _LABEL_NAME.fullmatch(label) is None or (label == "le" and family.kind == HISTOGRAM):
                raise invalid("Invalid label name")
        if bounds is not None and any(not low < high for low, high in itertools.pairwise(bounds)):
            raise invalid("Bucket Boundaries must be strictly sorted")
        key = tuple(sorted(labels.items()))
        series = family.series.get(key)
        if series is None:
            series = family.series[key] = Series(key, bounds)
        series.owners += 1
        return series

    def close_series(self, family: Family, series: Series) -> None:
        """One owner needs the series no more; it goes with the last."""
        series.owners -= 1
        if not series.owners:
            del family.series[series.labels]
