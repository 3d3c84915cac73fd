"""How many instructions a server's first process takes for a request, as valgrind's callgrind counts them.

Others' work on the machine does not change that, so a difference of a tenth of a per cent can be told on any. What the
kernel does is not counted. The server is 50 times slower meanwhile, so it always finds all requests waiting.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .servers import Program, Server, ServerError

# valgrind gives a program less room for memory than there is.
SHM_LIMIT = "256M"
# Old ones (3.19) do not know pidfd_open. What it gives is never ready here, as that of a stub that lives.
_STAND_IN = "import os\nos.pidfd_open = lambda pid, flags=0: os.eventfd(0)\n"
_TOTAL = re.compile(r"^(?:totals|summary): (\d+)", re.MULTILINE)


def available() -> bool:
    return shutil.which("callgrind_control") is not None


def counted(program: Program, folder: Path) -> Program:
    """stubserve within callgrind, which counts nothing yet. `folder` is new, and its own."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_STAND_IN)
    command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={folder / 'counts'}"]
    arguments = (*command, program.python, *program.arguments, f"--shm-limit={SHM_LIMIT}")
    return replace(program, arguments=arguments, environment={**os.environ, "PYTHONPATH": str(folder)})


def of(server: Server, folder: Path, ask: Callable[[], object]) -> int:
    """The instructions of the first process while the server is asked; `folder` as `counted` had it."""
    control = ["callgrind_control"]
    for words in (["-i", "on"], ["-z"]):
        _run([*control, *words, str(server.pid)])
    ask()
    before = set(folder.iterdir())
    _run([*control, "-d", str(server.pid)])
    for dump in set(folder.iterdir()) - before:
        found = _TOTAL.search(dump.read_text())
        if found is not None:
            return int(found[1])
    raise ServerError("callgrind has written no counts")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise ServerError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
