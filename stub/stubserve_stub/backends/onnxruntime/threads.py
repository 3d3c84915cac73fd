"""A limit for onnxruntime's threads, which no environment variable reaches.

Only the default changes, and only when the model imports onnxruntime: `intra_op_num_threads` of a model goes first.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from typing import Any, Optional, Sequence

_PACKAGE = "onnxruntime"


def limit(threads: int) -> None:
    """Has sessions start this many threads by default."""
    sys.meta_path.insert(0, _Finder(threads))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds onnxruntime as the other finders do, and has its loader make the change afterwards."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def find_spec(self, fullname: str, path: Optional[Sequence[str]], target: Any = None) -> Any:
        if fullname != _PACKAGE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_change(module: Any) -> None:
                load(module)
                _change_defaults(module, self._threads)

            spec.loader.exec_module = load_and_change  # type: ignore[method-assign]
        return spec


def _change_defaults(module: Any, threads: int) -> None:
    options_class: Any = module.SessionOptions
    session_class: Any = module.InferenceSession

    class SessionOptions(options_class):  # type: ignore[misc]
        __doc__ = options_class.__doc__

        def __init__(self) -> None:
            super().__init__()
            self.intra_op_num_threads = threads

    class InferenceSession(session_class):  # type: ignore[misc]
        __doc__ = session_class.__doc__

        def __init__(self, path_or_bytes: Any, sess_options: Any = None, *args: Any, **kwargs: Any) -> None:
            super().__init__(path_or_bytes, SessionOptions() if sess_options is None else sess_options, *args, **kwargs)

    for changed in (SessionOptions, InferenceSession):
        changed.__module__ = _PACKAGE
        changed.__qualname__ = changed.__name__
        setattr(module, changed.__name__, changed)
