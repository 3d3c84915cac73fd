"""Which frames of a source are wanted, and how late one is. No picture and no clock of its own: all is given.

Whether a frame is late is decided by its age: how long ago it could have been read from its source. Nothing counts how
many wait, because nothing waits here: a reader that is slow keeps the source waiting, and the frames that have grown
old in the meantime are decoded and dropped.

The age cannot be read off a frame. `Ages` compares the time stamps with the clock, from the frame on that came with the
least delay. A source may lie about its rate: if it is faster than its time stamps say, frames come early, and the
comparison begins anew with each. If it is slower, reading has to wait for it; a frame that had to be waited for is new,
whatever its time stamp says.
"""

from __future__ import annotations

from typing import Optional

# Time stamps that go back, or on by more than this, are those of another clock
_JUMP_S = 10.0
# What time stamps are rounded by
_ROUNDED_S = 0.0005
# Reading that takes less than this has not waited
_WAITED_S = 0.002


class Ages:
    """How old the frames of a live source are."""

    def __init__(self) -> None:
        self._offset: Optional[float] = None
        self._last: Optional[float] = None

    def arrived(self, time_s: float, now: float, read_s: float) -> None:
        """A frame with this time stamp has been read at `now`, which took `read_s`."""
        step = 0.0 if self._last is None else time_s - self._last
        self._last = time_s
        offset = now - time_s
        waited = read_s > max(_WAITED_S, step / 2)
        if self._offset is None or waited or offset < self._offset or not 0 <= step <= _JUMP_S:
            self._offset = offset

    def age(self, time_s: float, now: float) -> float:
        """In seconds, of a frame that has arrived."""
        return 0.0 if self._offset is None else now - time_s - self._offset


class Rate:
    """Picks frames so that there are at most so many in a second of the source's time stamps; all for 0."""

    def __init__(self, rate: float) -> None:
        self._interval = 1 / rate if rate else 0.0
        self._due: Optional[float] = None

    def picks(self, time_s: float) -> bool:
        if not self._interval:
            return True
        due = self._due
        if due is None or not due - self._interval - _ROUNDED_S <= time_s <= due + _JUMP_S:
            self._due = time_s + self._interval
            return True
        if time_s < due - _ROUNDED_S:
            return False
        # The grid stays, so that the rate is met on average; after a gap it begins anew.
        self._due = due + self._interval if due + self._interval > time_s else time_s + self._interval
        return True
