"""Names of the public module whose service this release does not offer. Using them says so, in plain words."""

from __future__ import annotations

from typing import Any, NoReturn, Optional

from stubserve_stub.constants import MetricKind
from stubserve_stub.exceptions import TritonModelException


def _refuse(what: str) -> NoReturn:
    raise TritonModelException("This release of stubserve does not offer {} yet.".format(what))


def load_model(model_name: str, config: str = "", files: Optional[Any] = None) -> NoReturn:
    """Raises TritonModelException: models cannot load models yet."""
    _refuse("load_model (a model that loads another model)")


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Raises TritonModelException: models cannot unload models yet."""
    _refuse("unload_model (a model that unloads another model)")


def is_model_ready(model_name: str, model_version: str = "") -> NoReturn:
    """Raises TritonModelException: models cannot ask for the readiness of others yet."""
    _refuse("is_model_ready (a model that asks whether another model is ready)")


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
