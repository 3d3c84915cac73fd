"""A process that ends with the process that started it, however that ends.

The kernel signals a process when the thread that started it is gone (PR_SET_PDEATHSIG). So a thread of its own starts
the process, and waits for it as long as it lives. A thread that was gone before the process could ask is noticed, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

_CODE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[1])); "
    "os.getppid() == int(sys.argv[2]) and os.execv(sys.argv[3], sys.argv[3:])"
)


def start(command: Sequence[str], last: signal.Signals, **variables: str) -> subprocess.Popen[bytes]:
    """Starts a command, whose first word is a path, with more `variables` in its environment.

    It gets the signal `last` when this process ends. Its output goes where that of this process goes.
    """
    words = [sys.executable, "-c", _CODE, str(int(last)), str(os.getpid()), *command]
    started = threading.Event()
    found: list[subprocess.Popen[bytes]] = []

    def run() -> None:
        found.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, env={**os.environ, **variables}))
        started.set()
        found[0].wait()

    threading.Thread(target=run, name=f"starts {os.path.basename(command[0])}", daemon=True).start()
    started.wait()
    return found[0]
