"""The interpreter of a stub, and its command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import stubserve_stub
from stubserve_stub.backends.cards import built_in

from stubserve.errors import internal

_STUB_PROGRAM = Path(stubserve_stub.__file__).parent / "__main__.py"
_MSGPACK = Path(msgpack.__file__).parent


@dataclass(frozen=True)
class Environment:
    """An interpreter, and what to add to the process environment of the stubs that run in it.

    `prefix` is the environment's folder, empty for the server's own. A variable that is None is removed. `lease` keeps
    an extracted environment in the cache for as long as this object lives. `before` are words in front of the
    interpreter: a program that confines itself and becomes it. `user` has its user, as arguments of `Popen`.
    """

    interpreter: str = sys.executable
    variables: dict[str, str | None] = field(default_factory=dict)
    prefix: str = ""
    lease: object = None
    before: tuple[str, ...] = ()
    user: Mapping[str, Any] = field(default_factory=dict)

    def run(self, *words: str) -> list[str]:
        return [*self.before, self.interpreter, *words]

    def command(self, name: str, arena: int, control: int) -> list[str]:
        """The command line of a stub that inherits these descriptors.

        `name` is for people: `ps` shows it.
        """
        return self.run(str(_STUB_PROGRAM), "triton_python_backend_stub", name, str(arena), str(control), str(_MSGPACK))

    def process_variables(self) -> dict[str, str]:
        unless_set = {name: value for card in built_in().values() for name, value in card.variables}
        changed = {**unless_set, **os.environ, **self.variables}
        return {name: value for name, value in changed.items() if value is not None}


def environment_in(folder: Path, lease: object = None) -> Environment:
    """The environment in a folder: of venv, uv, virtualenv, conda, or extracted from an archive of one of them.

    The variables are upstream's; the script `activate` must be there, as upstream demands, but is not run. conda keeps
    the script in its base environment only, so an environment that conda made in place needs none here. Raises
    ServeError.
    """
    prefix = folder.resolve()
    activate = folder / "bin" / "activate"
    if not activate.exists() and not (prefix / "conda-meta").is_dir():
        raise internal(f"Path {activate} does not exist. The Python environment should contain an 'activate' script.")
    programs, libraries = str(prefix / "bin"), str(prefix / "lib")
    found = [name for name in ("python", "python3", "pypy3", "pypy") if os.path.lexists(prefix / "bin" / name)]
    variables = {
        "VIRTUAL_ENV": str(prefix),
        "VIRTUAL_ENV_PROMPT": f"({prefix.name})",
        "PATH": _before(programs, "PATH"),
        "LD_LIBRARY_PATH": _before(libraries, "LD_LIBRARY_PATH"),
        "PYTHONHOME": None,
    }
    return Environment(str(prefix / "bin" / (found or ["python"])[0]), variables, str(prefix), lease)


def _before(folder: str, variable: str) -> str:
    # Upstream leaves a colon behind an empty value: it would stand for the working folder.
    rest = os.environ.get(variable)
    return f"{folder}:{rest}" if rest else folder
