"""Useless work that a client causes on a connection, counted until it is too much.

Frames that move nothing (settings, window updates that nobody waits for, empty DATA, priorities, what is not known)
and streams that are opened only to be ended or broken cost the server more than their client. A few of them belong to
any client, so what is of use excuses some. `take_frame` and `take_reset` raise ConnectionFault beyond that.
"""

from __future__ import annotations

from stubserve.grpc.http2.frames import ENHANCE_YOUR_CALM, ConnectionFault

MAX_RESETS = 1000
MAX_IDLE_FRAMES = 1000
# A stream that is opened excuses so many frames that move nothing.
_EXCUSED = 8
# Of what has been sent so many bytes excuse one: a client that reads a stream may say for each message that it has,
# however small it is, and however many came at once. What they excuse beforehand has a limit.
_BYTES_EACH = 16
_MOST_BEFOREHAND = 100_000


class Idling:
    """The count of one connection. `frames` and `resets` are what counts at the moment."""

    __slots__ = ("_sent", "frames", "resets")

    def __init__(self) -> None:
        # The bytes of messages that had been sent when a window was widened last
        self._sent = 0
        self.frames = 0
        self.resets = 0

    def take_frame(self) -> None:
        """A frame that moves nothing."""
        self.frames += 1
        if self.frames > MAX_IDLE_FRAMES:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many frames that move nothing")

    def excuse_frames(self) -> None:
        """A stream is opened by a client that has had some."""
        self.frames = max(self.frames - _EXCUSED, 0)

    def take_update(self, sent: int) -> None:
        """A window is widened where `sent` bytes have been sent so far; without any since the last it moves nothing."""
        moved = sent - self._sent
        if not moved:
            self.take_frame()
            return
        self._sent = sent
        self.frames = max(self.frames - _EXCUSED - moved // _BYTES_EACH, -_MOST_BEFOREHAND)

    def take_reset(self) -> None:
        """A stream is ended by its client, or broken. One that ends by itself takes one back: half may end so."""
        self.resets += 2
        if self.resets > MAX_RESETS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many cancelled streams")
