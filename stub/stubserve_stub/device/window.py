"""A window: the addresses at which a process sees one pool of a device's memory.

A pool grows by chunks of one size, and each chunk is memory of its own with a file descriptor of its own. The process
that owns the pool makes the chunks. Another process takes them, once each, by their descriptors. Both map chunk `n` at
`n` times the chunk size behind the window's first address. So a place in the pool is one offset for all processes, and
a tensor may lie across chunks.

Guarantees:

- The kernel counts the processes that have a chunk. When its maker dies, the processes that have mapped it keep it with
  its bytes. A chunk is free again when no process maps it and its descriptors are closed.
- An address is given only for bytes whose chunks are all mapped.
- A chunk that could not be made or taken leaves nothing behind.

Costs: reserved addresses, which are no memory. A call of the driver or two for each chunk, and none for each tensor.
"""

from __future__ import annotations

import os
from typing import Optional, Sequence, Set

from stubserve_stub.device.cuda import Device
from stubserve_stub.device.driver import NotSupported


class Window:
    """`span` bytes of a device; both sizes are multiples of its granularity. Devices among `readers` use it, too.

    Raises NotSupported where the device cannot share its memory, and DriverError.
    """

    def __init__(self, device: Device, span: int, chunk_bytes: int, readers: Sequence[int] = ()) -> None:
        if not device.facts.shares_memory:
            raise NotSupported(
                "GPU {} ({}) cannot share its memory with other processes: its driver has no virtual memory "
                "management with file descriptors".format(device.facts.number, device.facts.name)
            )
        self.span = span
        self.chunk_bytes = chunk_bytes
        self._device = device
        self._readers = readers
        self._chunks: Set[int] = set()
        self._base = device.reserve(span)

    def close(self) -> None:
        """Unmaps everything. No work that uses the addresses may be under way."""
        while self._chunks:
            index = self._chunks.pop()
            self._device.unmap(self._base + index * self.chunk_bytes, self.chunk_bytes)
        self._device.unreserve(self._base, self.span)

    @property
    def mapped_bytes(self) -> int:
        return len(self._chunks) * self.chunk_bytes

    def missing(self, offset: int, nbytes: int) -> Sequence[int]:
        """The chunks, by number, that these bytes need and the window lacks."""
        first, last = offset // self.chunk_bytes, (offset + max(nbytes, 1) - 1) // self.chunk_bytes
        return [index for index in range(first, last + 1) if index not in self._chunks]

    def make(self, index: int) -> int:
        """Makes a chunk of new memory; its descriptor, which is the caller's. Raises OutOfDeviceMemory."""
        handle = self._device.create(self.chunk_bytes)
        try:
            descriptor = self._device.exported(handle)
            try:
                self._map(index, handle)
            except BaseException:
                os.close(descriptor)
                raise
        finally:
            self._device.release(handle)
        return descriptor

    def take(self, index: int, descriptor: int) -> None:
        """Maps a chunk of another process; the descriptor stays the caller's.

        Raises ValueError for a chunk that is there already or not within the window, and DriverError.
        """
        if index in self._chunks or not 0 <= index < self.span // self.chunk_bytes:
            raise ValueError("chunk {} is mapped already, or outside of the pool".format(index))
        handle = self._device.imported(descriptor)
        try:
            self._map(index, handle)
        finally:
            self._device.release(handle)

    def address(self, offset: int, nbytes: int) -> int:
        """The address in this process of bytes of the pool. Raises ValueError for bytes that are not mapped."""
        if offset < 0 or nbytes < 0 or offset + nbytes > self.span or self.missing(offset, nbytes):
            raise ValueError("bytes {} to {} of the pool are not mapped".format(offset, offset + nbytes))
        return self._base + offset

    def offset(self, address: int, nbytes: int) -> Optional[int]:
        """Where memory at an address lies in the pool; None for other memory."""
        offset = address - self._base
        if 0 <= offset <= self.span - nbytes and not self.missing(offset, nbytes):
            return offset
        return None

    def _map(self, index: int, handle: int) -> None:
        self._device.map(self._base + index * self.chunk_bytes, self.chunk_bytes, handle, self._readers)
        self._chunks.add(index)
