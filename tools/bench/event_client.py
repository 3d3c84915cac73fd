"""A client for load of `generate_stream`: server-sent events, counted and not read.

Real Triton 2.51 sometimes ends streams before their last events when there are several at a time, sends the rest where
the next answer on that connection should begin, or does not end them. So this client connects anew for each request
and counts what was cut short instead of giving up; the table shows that beside the rate.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping

from .wrk import LoadError

MARK = b"data: "
LAST_CHUNK = b"\r\n0\r\n\r\n"
SCRATCH = memoryview(bytearray(1 << 20))


class EventConnection:
    """One request at a time, each on a connection of its own, answered by `per_request` events. `on_done` follows each.

    `cut_short` counts streams that ended with fewer.
    """

    def __init__(
        self,
        port: int,
        path: str,
        fields: Mapping[str, object],
        per_request: int,
        on_done: Callable[[EventConnection], None],
    ) -> None:
        self.socket = socket.socket()
        self.reconnects = True
        self.began = 0.0
        self.responses = 0
        self.cut_short = 0
        self.wants_to_write = False
        self._port = port
        self._per_request = per_request
        self._on_done = on_done
        text = json.dumps(fields).encode()
        self._request = (
            b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(text), text)
        )
        self._awaited = 0
        self._begun = False
        self._end = b""

    def request(self) -> None:
        """Begins the next request. The last one must be answered."""
        self._awaited = self.responses + self._per_request
        self._begun = False
        self._end = b""
        self.socket.close()
        self.socket = socket.create_connection(("127.0.0.1", self._port))
        self.socket.setblocking(False)
        if self.socket.send(self._request) != len(self._request):
            raise LoadError("a request did not fit into an empty socket")

    def write(self) -> None:
        pass

    def read(self) -> None:
        """Takes what has arrived. Raises LoadError for anything but the events awaited."""
        try:
            count = self.socket.recv_into(SCRATCH)
        except BlockingIOError:
            return
        data = bytes(SCRATCH[:count])
        if not data:
            raise LoadError("the server closed a connection")
        if not self._begun:
            self._begun = True
            if not data.startswith(b"HTTP/1.1 200 "):
                raise LoadError(f"a stream was refused: {data[:300]!r}")
        # A mark may lie across two reads.
        before = self._end[-(len(MARK) - 1) :]
        self.responses += (before + data).count(MARK)
        self._end = (self._end + data)[-len(LAST_CHUNK) :]
        if b'"error"' in data:
            raise LoadError(f"an event is an error: {data[:300]!r}")
        if self._end == LAST_CHUNK:
            self.cut_short += self.responses < self._awaited
            self._on_done(self)
