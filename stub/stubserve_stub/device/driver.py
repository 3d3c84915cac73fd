"""What all drivers of GPUs have in common: their errors, and what is told of a device.

`cuda` is the only driver so far. Its classes take and give addresses, descriptors and numbers, and nothing of CUDA's
own. Another driver with virtual memory management, as HIP, would be a second module with the same classes.
"""

from __future__ import annotations

from typing import NamedTuple, Tuple


class DriverError(RuntimeError):
    """A call of the driver failed. The text has the function, the device and the driver's own name of the error.

    `function` and `name` are as in the driver's manual, `name` is for instance CUDA_ERROR_INVALID_VALUE.
    """

    def __init__(self, text: str, function: str = "", name: str = "") -> None:
        self.function = function
        self.name = name
        super().__init__(text)


class NoDriver(DriverError):
    """There is no driver, it is too old, or it finds no device; the text says which."""


class OutOfDeviceMemory(DriverError):
    """The device has too little memory left."""


class NotSupported(DriverError):
    """The driver or the device cannot do this."""


class DeviceLost(DriverError):
    """The device failed under this process: every later call fails as well, until another process starts anew."""


class DeviceFacts(NamedTuple):
    """One device, as the driver tells of it; `number` is how this process counts it, `memory` is in bytes.

    `shares_memory` is whether its memory can be given to other processes as a descriptor.
    """

    number: int
    name: str
    memory: int
    compute_capability: Tuple[int, int]
    shares_memory: bool
