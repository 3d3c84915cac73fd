"""One-way queues of small messages in shared memory, with an eventfd as the doorbell.

One process writes, one reads. The writer puts records into the ring and then adds their *number* to the eventfd; the
reader takes the number off the eventfd and reads exactly that many records.

- No lost wake-up: the kernel keeps the count, whether the reader sleeps, runs or has not started.
- No torn or early read, on x86 and on ARM: the reader touches a record only after the eventfd has told of it, and the
  lock inside the eventfd orders the writer's stores before the reader's loads. In the other direction the reader
  publishes its progress (`head`) after it has decoded the records; a decode is full of branches on the loaded bytes,
  and no CPU makes a store visible before a branch that it depends on is decided.
- An idle pair costs nothing: both sleep in the kernel (the parent in its event loop).

Costs: one system call to announce any number of records, one to learn of them; a record costs its copy.

The reader's progress lies in a word apart from the records, because each side can write only to its own pages. A model
may have written over it: for an impossible value the writer raises `RingBroken`.

Records are a 4-byte length and the bytes, padded to 8. A record never wraps: the writer skips to the start of the ring
when the room at its end is too short, leaving a `WRAP` mark. A message above `MAX_RECORD` lies in the arena, and its
record says where (flag `SPILLED`).

The high half of the eventfd's count is not about records: `POKE` wakes the reader without one.
"""

from __future__ import annotations

import os
import struct
from typing import Callable, List, Tuple, TypeVar

from stubserve_stub.wire.layout import RING_BYTES

T = TypeVar("T")

_CAPACITY = RING_BYTES
_WRAP = 0xFFFFFFFF
_LENGTH_MASK = 0x00FFFFFF
_MOST_RECORDS = _CAPACITY // 8

SPILLED = 1 << 24
MAX_RECORD = _CAPACITY // 4
POKE = 1 << 32

_pack_word = struct.Struct("=I").pack_into
_unpack_word = struct.Struct("=I").unpack_from
_pack_count = struct.Struct("=Q").pack
_unpack_count = struct.Struct("=Q").unpack


class RingBroken(ValueError):
    """The other side of a ring claims to have read more than was written, or less than before."""


class RingWriter:
    """The writing end of the ring in `data`, with an eventfd as `doorbell`; `words[word]` is how far the reader is."""

    def __init__(self, data: memoryview, words: memoryview, word: int, doorbell: int) -> None:
        self._data = data
        self._words = words
        self._word = word
        self._doorbell = doorbell
        # Both sides begin in the second round, so zero is no valid value: stray writes mostly write zeros.
        self._tail = _CAPACITY
        # How far the reader was at the last look
        self._head = _CAPACITY
        # How many records the reader has not been told of
        self.unannounced = 0

    def put(self, message: bytes, flags: int = 0) -> bool:
        """Writes a record, unannounced; False if the ring is full. Raises RingBroken for an impossible word."""
        length = len(message)
        need = (length + 11) & ~7
        at = self._tail % _CAPACITY
        skip = _CAPACITY - at if at + need > _CAPACITY else 0
        if self._tail + skip + need - self._head > _CAPACITY:
            head = self._words[self._word]
            if not self._head <= head <= self._tail:
                raise RingBroken(f"a ring's reader is said to be at {head}, between {self._head} and {self._tail}")
            self._head = head
            if self._tail + skip + need - head > _CAPACITY:
                return False
        if skip:
            _pack_word(self._data, at, _WRAP)
            at = 0
        _pack_word(self._data, at, length | flags)
        self._data[at + 4 : at + 4 + length] = message
        self._tail += skip + need
        self.unannounced += 1
        return True

    def announce(self) -> int:
        """Announces all records written since the last call, and returns their number."""
        count = self.unannounced
        if count:
            os.write(self._doorbell, _pack_count(count))
            self.unannounced = 0
        return count


class RingReader:
    """The reading end of the ring in `data`; it says in `words[word]` how far it is."""

    def __init__(self, data: memoryview, words: memoryview, word: int) -> None:
        self._data = data
        self._words = words
        self._word = word
        self._at = words[word] = _CAPACITY

    def take(self, count: int, decode: Callable[[memoryview, int], T]) -> List[T]:
        """Reads `count` announced records; `decode(bytes, flags)` must not keep its memory.

        Raises ValueError for more records than a ring can hold: another process has rung the doorbell.
        """
        if count > _MOST_RECORDS:
            raise ValueError(f"{count} records in a ring of {_CAPACITY} bytes")
        position = self._at
        data = self._data
        messages = []
        for _ in range(count):
            at = position % _CAPACITY
            word: int = _unpack_word(data, at)[0]
            if word == _WRAP:
                position += _CAPACITY - at
                at = 0
                word = _unpack_word(data, 0)[0]
            length = word & _LENGTH_MASK
            messages.append(decode(data[at + 4 : at + 4 + length], word & ~_LENGTH_MASK))
            position += (length + 11) & ~7
        self._at = self._words[self._word] = position
        return messages


def read_doorbell(doorbell: int) -> Tuple[int, int]:
    """Takes (records, pokes) off an eventfd; sleeps if it is a blocking one and both are zero."""
    (count,) = _unpack_count(os.read(doorbell, 8))
    return count & 0xFFFFFFFF, count >> 32


def poke(doorbell: int) -> None:
    """Wakes the reader of a doorbell without a record. Safe from any thread and from a weak reference's callback."""
    os.write(doorbell, _pack_count(POKE))
