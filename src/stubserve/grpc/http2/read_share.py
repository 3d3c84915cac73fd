"""How much of the event loop's time one connection's reads get.

Most of what arrives is cheap for its length, or short. But frames can be made to cost far more than it costs to send
them: a header block of 128 KiB that is only taken apart to be refused takes 1.5 ms, and so do a thousand pings. Clients
that send such without pause had a small request of another client wait for a few milliseconds in each pass of the loop.

So a connection whose read took long reads no further before its turn comes, which it shares with all long work
(`protocols.offload`: one piece per pass), and less at once from then on. While nobody has long work to do, long is what
takes a slice; while others wait for their turns, long is a quarter of one, or many cheap connections would make a pass
long together. Reads of up to SHORT_BYTES cannot take long, and are not timed.
"""

from __future__ import annotations

from stubserve.inference.long_work import SLICE_S, Offload

SHORT_BYTES = 4096
_LEAST_BYTES = 16 * 1024


class ReadShare:
    """The share of one connection. `room` is where its next read goes."""

    __slots__ = ("_offload", "_scratch", "room")

    def __init__(self, offload: Offload, scratch: memoryview) -> None:
        self._offload = offload
        self._scratch = scratch
        self.room = scratch

    def took(self, seconds: float) -> bool:
        """What came with a read took so long; whether the next one has to wait for its turn."""
        waits = seconds > (SLICE_S / 4 if self._offload.busy else SLICE_S)
        size = len(self.room)
        if waits and size > _LEAST_BYTES:
            self.room = self._scratch[: size // 2]
        elif seconds < SLICE_S / 8 and size < len(self._scratch):
            self.room = self._scratch[: size * 2]
        return waits
