"""The end of a server for people: what it still waits for and for how long, and how to end it at once.

SIGINT and SIGTERM begin the end. A second SIGINT (ctrl-C) ends the server at once: the kernel then ends its stubs, and
the janitor ends the processes that their models have started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable

from stubserve.server.server import Server
from stubserve.server.starting import listed, now_and_then

log = logging.getLogger("stubserve.server")

# The parent of the server may pass its own signal on, so one ctrl-C may arrive twice.
_SAME_S = 0.3

_PATIENCE_S = 1.0
_ENDED_BY_SIGINT = 128 + signal.SIGINT


class Stopping:
    """Handles the signals. `at_once` cleans up before the process is ended.

    A person who presses ctrl-C is `impatient`; SIGTERM comes from a program that starts and stops servers.
    """

    def __init__(self, at_once: Callable[[], None]) -> None:
        self.asked = asyncio.Event()
        self.impatient = False
        self._at_once = at_once
        self._asked_at = 0.0
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        if not self.asked.is_set():
            self._asked_at = time.monotonic()
            self.impatient = number == signal.SIGINT
            self.asked.set()
        elif number == signal.SIGINT and time.monotonic() - self._asked_at > _SAME_S:
            log.warning("ended at once, without waiting any longer")
            self._at_once()
            os._exit(_ENDED_BY_SIGINT)


async def tell_what_is_waited_for(server: Server, deadline: float) -> None:
    """Logs that now and then, until it is cancelled; `deadline` is in the event loop's time."""
    loop = asyncio.get_running_loop()
    async for _ in now_and_then(_PATIENCE_S):
        waited_for = what_is_waited_for(server)
        if waited_for:
            log.info(
                "waiting for %s, for %.0f s at most (--exit-timeout-secs); ctrl-C again ends the server at once",
                waited_for,
                max(deadline - loop.time(), 0),
            )


def what_is_waited_for(server: Server) -> str:
    """The models that have requests, and those that finalize; empty if there are none."""
    leaving = server.leaving()
    models = {(model.name, model.version): model for model in (*server.serving(), *leaving)}
    requests = {name: 0 for name, _ in sorted(models)}
    for (name, _), model in models.items():
        requests[name] += model.under_way
    parts = [
        f"model '{name}' ({count} request{'' if count == 1 else 's'})" for name, count in requests.items() if count
    ]
    finalizing = sorted({model.name for model in leaving if not requests[model.name]})
    if finalizing:
        parts.append(f"{'model' if len(finalizing) == 1 else 'models'} {listed(finalizing)} to finalize")
    return ", ".join(parts)
