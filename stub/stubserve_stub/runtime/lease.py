"""Memory that a stub was given in an answer to a request of its model, and how it is given back.

A lease lies at the bottom of everything that a model can make of such an output: the tensor's memoryview, arrays and
their slices, buffer exports, DLPack capsules. When the last of them dies the lease dies, and its end tells the channel,
which tells the parent. numpy knows a lease by its `__array_interface__`; that also works before Python 3.12, where a
class cannot offer a buffer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional

import numpy as np

if TYPE_CHECKING:
    from stubserve_stub.runtime.channel import Channel


class Lease:
    """`nbytes` of the arena at `offset`, mapped at `address`."""

    __slots__ = ("__array_interface__", "__weakref__", "_channel", "address", "nbytes", "offset")

    __array_interface__: Dict[str, Any]

    def __init__(self, channel: Channel, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.address = channel.arena.address(offset)
        self.__array_interface__ = {
            "version": 3, "shape": (nbytes,), "typestr": "|u1", "data": (self.address, False)
        }  # fmt: skip
        self._channel = channel

    def view(self) -> memoryview:
        """The memory, writable; keeps the lease alive."""
        array: Any = np.asarray(self)
        return memoryview(array)

    def __del__(self) -> None:
        self._channel.drop(self.offset)


def lease_of(buffer: Any) -> Optional[Lease]:
    """The lease in whose memory an array or memoryview lies, None if it is other memory."""
    while buffer is not None:
        if isinstance(buffer, Lease):
            return buffer
        buffer = buffer.obj if isinstance(buffer, memoryview) else getattr(buffer, "base", None)
    return None
