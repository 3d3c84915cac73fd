"""The part of a stub's process that a backend may use, of its own or of one instance in it."""

from __future__ import annotations

import copy
from typing import Dict, Optional, Union

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.control import Control, Line
from stubserve_stub.runtime.failure import describe, for_log
from stubserve_stub.wire import codes


class Host:
    """`instance` is the name in errors and log lines.

    `settings` are the server's for the backend (--backend-config), `check_outputs` says which answers are compared with
    the configuration (--check-outputs). Only the host of an instance has a channel.
    """

    channel: Channel

    def __init__(
        self,
        instance: str,
        control: Union[Control, Line],
        settings: Optional[Dict[str, str]] = None,
        check_outputs: str = "never",
    ) -> None:
        self.check_outputs = check_outputs
        self.instance = instance
        self.settings: Dict[str, str] = settings or {}
        self.control = control

    def at(self, instance: str, channel: Channel, line: Line) -> Host:
        """The host of an instance."""
        host = copy.copy(self)
        host.instance, host.channel, host.control = instance, channel, line
        return host

    def log(self, level: int, file: str, line: int, text: str, request_id: str = "") -> None:
        """Writes a line into the server's log; `level` is one of `wire.codes`, `request_id` the id of its request."""
        self.control.send("log", level=level, file=file, line=line, message=text, request_id=request_id)

    def failure(self, raised: BaseException) -> str:
        """Logs why requests have failed, and returns the error for their clients."""
        self.log(codes.LOG_ERROR, "host.py", 0, self.failure_text(for_log(raised)))
        return self.failure_text(describe(raised))

    def failure_text(self, message: str) -> str:
        """The error for the clients of requests that have failed because of `message`."""
        return f"Failed to process the request(s) for model '{self.instance}', message: {message}"
