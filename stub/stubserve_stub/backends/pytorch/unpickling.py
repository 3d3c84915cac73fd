"""Keeps pickles in a model's files from running code.

TorchScript has a reader of its own, and weights are read by torch with `weights_only`. But `torch.export.load` falls
back to the pickle module for what that refuses, in several places, which differ from version to version. A pickle can
only do what it names, and the interpreter tells of each name before it is looked up (the audit event
`pickle.find_class`). So while such a file is loaded, every name is refused but those that tensors are made with.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Iterator, Tuple

from stubserve_stub.runtime.failure import Refusal

_HARMLESS = {
    ("collections", "OrderedDict"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch._utils", "_rebuild_parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
}

# The file that is being loaded, empty for none. A hook cannot be taken out again, so there is one for all files.
_loading = [""]
_installed = [False]


@contextlib.contextmanager
def nothing_executable(path: str) -> Iterator[None]:
    """Within it Refusal is raised by whatever unpickles more than tensors."""
    if not _installed[0]:
        _installed[0] = True
        sys.addaudithook(_on_audit)
    _loading[0] = path
    try:
        yield
    finally:
        _loading[0] = ""


def _on_audit(event: str, arguments: Tuple[Any, ...]) -> None:
    if event == "pickle.find_class" and _loading[0] and arguments not in _HARMLESS:
        raise Refusal(
            "'{}' has a pickle in it that asks for {}.{}: nothing executable is unpickled".format(
                _loading[0], *arguments
            )
        )
