"""`breakpoint()` in a model: a debugger on the server's terminal where the stub has that, a word in the log where not.

What a stub prints goes through the server, line by line, and a debugger cannot work like that. So at its first
breakpoint a stub that has the terminal for its input takes it for its output, too, and keeps it.

Without a terminal a debugger would read the end of its input at once and fail the request. The model goes on instead.
PYTHONBREAKPOINT counts as ever: a person who sets it has a debugger that needs no terminal.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from stubserve_stub.runtime.host import Host
from stubserve_stub.wire import codes


def connect(host: Host, terminal: bool) -> None:
    """From now on `breakpoint()` is for this stub."""
    default = sys.breakpointhook
    told = set()

    def on_breakpoint(*arguments: Any, **named: Any) -> Any:
        if terminal:
            _take_terminal()
        frame = sys._getframe(1)
        if os.environ.get("PYTHONBREAKPOINT"):
            return default(*arguments, **named)
        if terminal:
            # As `pdb.set_trace` does, but for the frame: that would stop here, in its caller.
            import pdb

            pdb.Pdb().set_trace(frame)
            return None
        place = (frame.f_code.co_filename, frame.f_lineno)
        if place not in told:
            told.add(place)
            host.log(
                codes.LOG_WARNING,
                place[0],
                place[1],
                "instance '{}' went on at a breakpoint() in {}, line {}: it has no terminal. Start the server with "
                "--debug-model=NAME, where NAME is the model's, or with --dev, to stop there.".format(
                    host.instance, *place
                ),
            )
        return None

    sys.breakpointhook = on_breakpoint


def _take_terminal() -> None:
    if os.isatty(0) and not os.isatty(1):
        sys.stdout.flush()
        sys.stderr.flush()
        terminal = os.open(os.ttyname(0), os.O_RDWR)
        os.dup2(terminal, 1)
        os.dup2(terminal, 2)
        os.close(terminal)
