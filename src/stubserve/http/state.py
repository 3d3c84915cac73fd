"""Where a connection is in a request."""

from __future__ import annotations

import enum


class ConnectionState(enum.Enum):
    HEAD = enum.auto()
    """Collecting a head."""
    BODY = enum.auto()
    """Collecting a body, in memory or in the arena."""
    SKIP = enum.auto()
    """Throwing a body away whose answer is already known."""
    PASS = enum.auto()
    """Passing a body on to the fallback."""
    BUSY = enum.auto()
    """The request is complete and is being answered."""
    CLOSED = enum.auto()


# Bound once: in Python 3.10 and 3.11 looking up a member of an enum costs as much as a function call.
HEAD, BODY, SKIP, PASS, BUSY, CLOSED = ConnectionState
