"""Things that each stub process has once, and here each loaded model: modules, folder, calls, log and metrics."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from stubserve_stub.api import bls, logger, metrics, utils
from stubserve_stub.api.server_queries import ServerQueries

from stubserve.instances.launcher import log_from_stub
from stubserve.instances.metrics import StubMetrics
from stubserve.observability.custom_metrics import MetricRegistry

_ALL_LEVELS = 0b1111


class ModelImports:
    """Keeps the modules of one model apart from others: each model's file is `1.model`, and helpers share names, too.

    Only while the model is active, its folders (`paths`) are at the end of `sys.path` and its modules in `sys.modules`.
    So several models can be loaded, and nothing of them is left when they are closed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folders = [path.resolve() for path in paths]
        self._paths = [str(path) for path in paths]
        self._modules: dict[str, ModuleType] = {}
        self._others: set[str] = set()

    def enter(self) -> None:
        self._others = set(sys.modules)
        sys.path.extend(self._paths)
        sys.modules.update(self._modules)
        importlib.invalidate_caches()

    def leave(self) -> None:
        for path in self._paths:
            if path in sys.path:
                # The last entry: an earlier one belongs to other code.
                del sys.path[len(sys.path) - 1 - sys.path[::-1].index(path)]
        for name in set(sys.modules) - self._others:
            if self._is_own(sys.modules[name]):
                self._modules[name] = sys.modules.pop(name)

    def _is_own(self, module: ModuleType) -> bool:
        place = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if not isinstance(place, str):
            return False
        path = Path(place).resolve()
        return any(path.is_relative_to(folder) for folder in self._folders)


class LocalMetrics:
    """The server's side of a model's metrics, in this process: changes take effect at once."""

    def __init__(self, instance: str, registry: MetricRegistry) -> None:
        self.queries = ServerQueries(instance, self.send)
        self._metrics = StubMetrics(registry)

    def send(self, kind: str, **fields: Any) -> None:
        if kind == "query":
            self.queries.on_answer({"number": fields["number"], **self._metrics.answer(fields)})
        else:
            self._metrics.on_message({"kind": kind, **fields})


class Surroundings:
    """The surroundings of one model. `calls` answers its requests to other models, None while it may make none."""

    def __init__(self, model: str, search_path: Sequence[Path], version_dir: Path) -> None:
        self.calls: Any = None
        self._imports = ModelImports(search_path)
        self._version_dir = version_dir
        self._metrics = LocalMetrics(model, MetricRegistry({}))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Makes the model active while its code runs; after that the model that was active before is active again.

        If there was none, this one stays active, for its own threads.
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
        """Lets the model call others from now on; with None forbids it."""
        self.calls = calls
        bls.connect(calls)

    def close(self) -> None:
        if self in _active:
            self._leave()

    def _enter(self) -> None:
        _active.append(self)
        self._imports.enter()
        utils.set_model_dir(str(self._version_dir))
        logger.connect(log_line, lambda: _ALL_LEVELS)
        metrics.connect(self._metrics.queries)
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
