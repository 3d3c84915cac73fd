"""Reports the server's state to a service manager (systemd, `Type=notify`): ready, stopping, alive.

Each report is a datagram to the socket in NOTIFY_SOCKET; without that variable nothing is done. The variables are
removed from the environment, so that no stub speaks for the server. The event loop sends WATCHDOG=1 twice in each
interval of the manager: if the loop hangs, the manager restarts the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import MutableMapping

# How long a report that is sent once may wait for the manager to read earlier ones
_PATIENCE_S = 1.0


class ServiceManager:
    """The program that started this process and wants its reports, such as systemd."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        address = environment.pop("NOTIFY_SOCKET", "")
        allowed_us = environment.pop("WATCHDOG_USEC", "")
        whose = environment.pop("WATCHDOG_PID", "")
        # A name that begins with @ is not in the file system.
        self._address = "\0" + address[1:] if address.startswith("@") else address
        watches = bool(address) and allowed_us.isdecimal() and whose in ("", str(os.getpid()))
        self._interval_s = int(allowed_us) / 2_000_000 if watches else 0.0
        self._next: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """Reports from now on that the running event loop is alive, if the manager wants it."""
        if self._interval_s:
            self._send("WATCHDOG=1", 0.0)
            self._next = asyncio.get_running_loop().call_later(self._interval_s, self.watch)

    def ready(self) -> None:
        self._send("READY=1")

    def stopping(self) -> None:
        """The server ends; this takes as long as requests and models need."""
        self._send("STOPPING=1")

    def close(self) -> None:
        if self._next is not None:
            self._next.cancel()

    def _send(self, news: str, patience_s: float = _PATIENCE_S) -> None:
        if self._address:
            # A manager that is gone, or does not read, must not delay the server for long.
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(patience_s)
                sender.sendto(news.encode(), self._address)
