"""What is one per process in a stub, and here one per loaded model: its modules, folder, calls, log
and metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stubserve_stub.api import bls, logger, metrics, utils

from stubserve.instances.launcher import log_from_stub
from stubserve.observability.custom_metrics import MetricRegistry
from stubserve.testing.imports import ModelImports
from stubserve.testing.metrics import LocalMetrics

_ALL_LEVELS = 0b1111


class Surroundings:
    """The surroundings of one model. `calls` answers its requests to other models, None while it may make none."""

    def __init__(self, model: str, search_path: Sequence[Path], version_dir: Path) -> None:
        self.calls: Any = None
        self._imports = ModelImports(search_path)
        self._version_dir = version_dir
        self._metrics = LocalMetrics(model, MetricRegistry({}))

    @contextmanager
    def active(self) -> Iterator[None]:
        """While the model's code runs. A model that was active before is so again afterwards.

        Otherwise it stays active, for threads of its own.
        """
        previous = _active[-1] if _active else None
        if previous is not self:
            if previous is not None:
                previous._leave()
            self._enter()
        try:
            yield
        finally:
            if previous is not None and previous is not self:
                self._leave()
                previous._enter()

    def allow(self, calls: Any) -> None:
        """From now on the model may call others; with None it may not."""
        self.calls = calls
        bls.connect(calls)

    def close(self) -> None:
        """The model is closed."""
        if self in _active:
            self._leave()

    def _enter(self) -> None:
        _active.append(self)
        self._imports.enter()
        utils.set_model_dir(str(self._version_dir))
        logger.connect(log_line, lambda: _ALL_LEVELS)
        metrics.connect(self._metrics.questions)
        bls.connect(self.calls)

    def _leave(self) -> None:
        _active.remove(self)
        self._imports.leave()
        utils.set_model_dir("")
        logger.connect(None)
        metrics.connect(None)
        bls.connect(None)


# At most one
_active: list[Surroundings] = []


def log_line(level: int, file: str, line: int, text: str) -> None:
    """As a stub's `Host.log`."""
    log_from_stub({"level": level, "file": file, "line": line, "message": text})
