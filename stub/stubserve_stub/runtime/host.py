"""The part of a stub's process that its backend may use."""

from __future__ import annotations

from typing import Dict, Optional

from stubserve_stub.runtime.channel import Channel
from stubserve_stub.runtime.control import Control
from stubserve_stub.runtime.failure import describe, for_log
from stubserve_stub.wire import codes


class Host:
    """`instance` is the name in errors and log lines.

    `settings` are the server's for the backend (--backend-config), `check_outputs` says which answers are compared with
    the configuration (--check-outputs).
    """

    def __init__(
        self,
        instance: str,
        channel: Channel,
        control: Control,
        settings: Optional[Dict[str, str]] = None,
        check_outputs: str = "never",
    ) -> None:
        self.check_outputs = check_outputs
        self.instance = instance
        self.settings: Dict[str, str] = settings or {}
        self.channel = channel
        self.control = control

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
