"""The identifiers of a connection's streams (RFC 9113, 5.1.1): those of a client are odd, and each is above the last.

What a client leaves out is closed: it may not open it any more. What it has not come to yet is idle, and a frame that
names it breaks the connection. All others it has opened once, and their frames may have been on their way when the
server had closed them.
"""

from __future__ import annotations

from collections import deque

from stubserve.grpc.http2.frames import PROTOCOL_ERROR, ConnectionFault

# So many of the ranges that it has left out are remembered, which is as many as a proper client has.
_SKIPPED = 16


class StreamIdentifiers:
    """The identifiers of one connection. `last` is that of the last stream that the client has opened."""

    __slots__ = ("_skipped", "last")

    def __init__(self) -> None:
        self.last = 0
        # As (first, end)
        self._skipped: deque[tuple[int, int]] = deque(maxlen=_SKIPPED)

    def open(self, id: int) -> bool:
        """Takes that of a header block. False if it had been opened before.

        Raises ConnectionFault for one that was left out.
        """
        if id <= self.last:
            if any(first <= id < end for first, end in self._skipped):
                raise ConnectionFault(PROTOCOL_ERROR, f"stream {id} is opened after stream {self.last}")
            return False
        if id > self.last + 2:
            self._skipped.append((self.last + 1, id))
        self.last = id
        return True

    def is_idle(self, id: int) -> bool:
        """Whether it was never opened."""
        return id % 2 == 0 or id > self.last

    def refuse_idle(self, id: int, what: str) -> None:
        """Raises ConnectionFault if it was never opened. `what` is what came for it."""
        if self.is_idle(id):
            raise ConnectionFault(PROTOCOL_ERROR, f"{what} of stream {id}, which was never open")
