"""Tells a service manager (systemd, `Type=notify`) how the server is: ready, stopping, alive.

The protocol is a datagram for each news, to the socket that NOTIFY_SOCKET names. Where nobody is named nothing is done.
The variables are taken out of the environment, so that no stub speaks for the server. WATCHDOG=1 is sent by the event
loop, twice in each time that the manager allows: a loop that stands is a server that the manager starts anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping

# How long news that is told once may wait for the manager to read what came before
_PATIENCE_S = 1.0


class ServiceManager:
    """The program that started this process and wants to hear of it, such as systemd."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.pop("NOTIFY_SOCKET", "")
        allowed_us = environment.pop("WATCHDOG_USEC", "")
        whose = environment.pop("WATCHDOG_PID", "")
        # A name that begins with @ is none in the file system.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watches = bool(address) and allowed_us.isdecimal() and whose in ("", str(os.getpid()))
        self._interval_s = int(allowed_us) / 2_000_000 if watches else 0.0
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """From now on says that the running event loop is alive, if the manager wants to know."""
        if self._interval_s:
            self._send("WATCHDOG=1", 0.0)
            self._next = asyncio.get_running_loop().call_later(self._interval_s, self.watch)

    def ready(self) -> None:
        """The server takes requests."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The server ends; it takes as long as requests and models take."""
        self._send("STOPPING=1")

    def close(self) -> None:
        """Nothing is said any more."""
        if self._next is not None:
            self._next.cancel()

    def _send(self, news: str, patience_s: float = _PATIENCE_S) -> None:
        if self._address:
            # A manager that is gone, or does not read, must not hold up anybody for long.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(patience_s)
                sender.sendto(news.encode(), self._address)
