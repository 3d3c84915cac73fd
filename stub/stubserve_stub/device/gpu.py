"""The GPUs that this process works with: each is opened once, when it is first needed, with one stream for our copies.

The driver and the contexts belong to the process, and so does this module's list of them. A model's framework uses the
same contexts. A process without a tensor in memory of a GPU loads no driver.
"""

from __future__ import annotations

import threading
from typing import Dict, Optional

from stubserve_stub.device.cuda import Cuda, Device

_guard = threading.RLock()
_driver: Optional[Cuda] = None
_peers = True
_open: "Dict[int, Gpu]" = {}


class Gpu:
    """One device. Copies are added to `stream`, which any thread may use."""

    def __init__(self, driver: Cuda, number: int) -> None:
        self.number = number
        self.device: Device = driver.open(number)
        self.stream = self.device.stream()

    def fill(self, address: int, source: int, nbytes: int, of: "Gpu") -> None:
        """Copies memory of a device to this one, and waits for the end."""
        if of is self:
            self.stream.copy(address, source, nbytes)
        else:
            self.stream.copy_from(of.device, address, source, nbytes)
        self.stream.synchronize()

    def fill_from_host(self, address: int, host: int, nbytes: int) -> None:
        self.stream.copy_up(address, host, nbytes)
        self.stream.synchronize()

    def copy_to_host(self, host: int, source: int, nbytes: int) -> None:
        self.stream.copy_down(host, source, nbytes)
        self.stream.synchronize()


def forbid_peers() -> None:
    """Devices of this process are no peers, whatever they can. Before the driver is loaded."""
    global _peers
    _peers = False


def driver() -> Cuda:
    """Raises NoDriver."""
    global _driver
    with _guard:
        if _driver is None:
            _driver = Cuda(_peers)
        return _driver


def gpu(number: int) -> Gpu:
    """The device of this number. Raises DriverError."""
    found = _open.get(number)
    if found is None:
        with _guard:
            found = _open.get(number)
            if found is None:
                found = _open[number] = Gpu(driver(), number)
    return found


def finish_all() -> None:
    """Waits for all work of this process on all devices that it works with. Raises what went wrong with it."""
    for one in list(_open.values()):
        one.device.synchronize()
