"""The packages that backends run on, out of the environment of the stub."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from stubserve_stub.runtime.failure import Refusal


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
