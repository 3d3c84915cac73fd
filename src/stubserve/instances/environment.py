"""Which interpreter a stub runs in, and with which command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack
import stubserve_stub

_STUB_PROGRAM = Path(stubserve_stub.__file__).parent / "__main__.py"
_MSGPACK = Path(msgpack.__file__).parent


@dataclass(frozen=True)
class Environment:
    """An interpreter, and what to add to the process environment of the stubs that run in it."""

    interpreter: str = sys.executable
    variables: dict[str, str] = field(default_factory=dict)

    def command(self, arena: int, control: int, doorbells: Sequence[int]) -> list[str]:
        """The command line of a stub that inherits these descriptors; doorbells of requests, responses, answers."""
        descriptors = [str(fd) for fd in (arena, control, *doorbells)]
        return [self.interpreter, str(_STUB_PROGRAM), "triton_python_backend_stub", *descriptors, str(_MSGPACK)]

    def process_variables(self) -> dict[str, str]:
        return {**os.environ, **self.variables}
