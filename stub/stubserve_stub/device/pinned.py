"""Pinned memory: blocks of the stub's own segment that a GPU copies to without the processor.

A block is pinned with the first large output that comes down into it, and stays pinned while it is warm: the next
output in it costs no call. A driver keeps the pages that are pinned. If they went back to the system meanwhile, it
would go on writing to them, and nobody would see it. So the stub pins only memory of its own segment: while the stub
lives, nobody else gives back pages of that. The stub unpins a block before it gives back its pages.

Inputs are not pinned: their pages belong to the server or to other stubs. The driver copies them on the way.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Callable, Dict, Tuple

from stubserve_stub.device.cuda import Device
from stubserve_stub.device.driver import DriverError

# Below this the driver's own copy costs less than the call that pins
LEAST_BYTES = 64 << 10


class Pinned:
    """At most `most` bytes; what is beyond them is not pinned. `say` gets the reason if the driver pins nothing."""

    def __init__(self, most: int, say: Callable[[str], None]) -> None:
        self._most = most
        self._say = say
        self._guard = threading.Lock()
        # By address: how many bytes, and the device that has pinned them
        self._blocks: Dict[int, Tuple[int, Device]] = {}

    @property
    def nbytes(self) -> int:
        """How many bytes are pinned."""
        return sum(nbytes for nbytes, _ in list(self._blocks.values()))

    def pin(self, device: Device, address: int, nbytes: int) -> None:
        """Pins a block that an output is about to come down into, if it is not pinned yet."""
        known = self._blocks.get(address)
        if nbytes < LEAST_BYTES or (known is not None and known[0] >= nbytes):
            return
        with self._guard:
            self._let_go(address, nbytes)
            if self.nbytes + nbytes > self._most:
                return
            try:
                device.register(address, nbytes)
            except DriverError as error:
                self._most = 0
                self._say("host memory cannot be pinned, so copies from GPUs are slower: {}".format(error))
                return
            self._blocks[address] = (nbytes, device)

    def unpin(self, address: int, nbytes: int) -> None:
        """These pages are about to go back to the system."""
        if self._blocks:
            with self._guard:
                self._let_go(address, nbytes)

    def _let_go(self, address: int, nbytes: int) -> None:
        for start, (size, device) in list(self._blocks.items()):
            if start < address + nbytes and address < start + size:
                del self._blocks[start]
                with contextlib.suppress(DriverError):  # a device that is lost keeps nothing
                    device.unregister(start)
