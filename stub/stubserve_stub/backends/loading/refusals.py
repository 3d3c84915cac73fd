"""Why a backend refuses to load a model: no package that it runs on, an instance on a GPU, a file of another kind."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, List, Tuple

from stubserve_stub.runtime.failure import Refusal

if TYPE_CHECKING:
    # The server wants none of a stub's process when it looks at a file.
    from stubserve_stub.backends.base import InstanceFacts


def import_package(package: str, extra: str) -> Any:
    """A package that `stubserve[extra]` installs. Raises Refusal if the stub's environment has none that works."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if error.name != package:
            raise Refusal("{} in {} cannot be imported: {}".format(package, sys.prefix, error)) from None
        raise Refusal(lacks(package, extra)) from None


def lacks(package: str, extra: str) -> str:
    """What a model's load and `check` say where the environment of this process has no such package."""
    return (
        "the backend {} needs the package {}, which the environment {} does not have: pip install 'stubserve[{}]' "
        "adds it to the server's, or the parameter EXECUTION_ENV_PATH names an environment that has it".format(
            extra, package, sys.prefix, extra
        )
    )


def refuse_gpu(instance: InstanceFacts, backend: str) -> None:
    """Raises Refusal for an instance that is to run on a GPU."""
    if instance.arguments["model_instance_kind"] == "GPU":
        raise Refusal(
            "model instance '{}' is to run on a GPU, and the {} backend runs on CPUs only: "
            "`instance_group [ {{ kind: KIND_CPU }} ]` says so in config.pbtxt".format(instance.name, backend)
        )


_KINDS: List[Tuple[bytes, str]] = [
    (b"version https://git-lfs", "a pointer of Git LFS: `git lfs pull` gets the file"),
    (b"PK\x03\x04", "a zip archive, as PyTorch saves models"),
    (b"\x89HDF", "an HDF5 file"),
    (b"<", "a web page or XML"),
]
# So many bytes are enough to tell.
HEAD_BYTES = 200


def resemblance(head: bytes) -> str:
    """For the end of a sentence that says what the file is not; empty for files of unknown kinds."""
    for start, what in _KINDS:
        if head.startswith(start):
            return "; it is " + what
    return ""
