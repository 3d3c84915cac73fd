"""Names of the public module whose service this release does not offer. Using them says so, in plain words."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

from stubserve_stub.constants import MetricKind
from stubserve_stub.exceptions import TritonModelException


def _refuse(what: str) -> NoReturn:
    raise TritonModelException("This release of stubserve does not offer {} yet.".format(what))


class MetricFamily:
    """Raises TritonModelException: models cannot report metrics yet."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        _refuse("metrics of a model (MetricFamily)")

    def Metric(self, labels: Optional[Any] = None, buckets: Optional[Any] = None) -> NoReturn:
        """Raises TritonModelException."""
        _refuse("metrics of a model (Metric)")


class Metric:
    """A family makes these; on its own it has no constructor."""

    def __init__(self) -> None:
        raise TypeError("Metric: No constructor defined!")


class SharedMemory:
    """Upstream's handle to a stub's shared-memory region. Here nothing in a stub has a region to run out of."""

    def free_memory(self) -> NoReturn:
        """Raises TritonModelException."""
        _refuse("the size of a shared-memory region, because it has none")
