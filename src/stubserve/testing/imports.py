"""Modules of models, kept apart: every model's file is called `1.model`, and helpers beside it have common names too.

A model's folders are on `sys.path`, and what was imported from them is in `sys.modules`, only while that model is the
active one. So several models can be loaded at a time, and nothing of them is left when they are closed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType


class ModelImports:
    """The modules of one model. `paths` go to the end of `sys.path`."""

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
                # The last one: an earlier one is somebody else's.
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
