"""Tensors in memory of a GPU, as `pb_utils` has them. The module is imported with the first of them.

- A tensor that arrives is the memory of a pool; `to_dlpack` gives it to a framework without a copy. A model that looks
  at memory which others read, too, gets a copy on the GPU.
- A tensor that a model makes (`from_dlpack`) keeps the framework's memory until it is answered or sent. The framework's
  work on it goes before ours by DLPack's handshake; for a bare capsule, which knows no stream, all work is waited for.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.api import dlpack
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.tensors import Tensor
from stubserve_stub.device.gpu import gpu
from stubserve_stub.runtime.devices import DeviceMemory, Devices
from stubserve_stub.wire.arena import address_of
from stubserve_stub.wire.places import Lent, OnDevice, Place

if TYPE_CHECKING:
    from stubserve_stub.runtime.channel import Channel
    from stubserve_stub.wire.messages import WireTensor


class DeviceTensor(Tensor):
    """A tensor over `memory`. `devices` copies it where it is shared; None for memory of the model's own."""

    __slots__ = ("_device", "_devices")
    _on_device = True

    _device: DeviceMemory
    _devices: Optional[Devices]

    def __init__(
        self, name: str, datatype: int, shape: Sequence[int], memory: DeviceMemory, devices: Optional[Devices]
    ) -> None:
        self._name = name
        self._datatype = datatype
        self._shape = shape
        self._source = self._elements = self._storage = self._array = None
        self._device = memory
        self._devices = devices

    def is_cpu(self) -> bool:
        return False

    def as_numpy(self) -> Any:
        raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")

    def to_dlpack(self) -> Any:
        if self._device.shared:
            assert self._devices is not None
            self._device = self._devices.copied(self._device, self._device.gpu.number)
        memory = self._device
        memory.ordered = False
        return dlpack.export_device(self, self._datatype, self._shape, memory.address, memory.gpu.number)

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (dlpack.CUDA, self._device.gpu.number)

    def _watch(self) -> Any:
        return weakref.ref(self._device) if self._device.offset >= 0 else None

    def _nbytes(self) -> int:
        return self._device.nbytes

    def _payload(self) -> Any:
        return (self._datatype, self._shape, self._device.on_host())

    def _placed(self, placer: Any, stays: bool, in_regions: Any = None) -> Place:
        if in_regions is not None:
            place: Optional[Place] = in_regions(self._name, self._device.on_host())
            if place is not None:
                return place
        placed: Place = placer.place_device(self._device, stays, "output '{}'".format(self._name))
        return placed

    def _outgoing(self, channel: Channel) -> WireTensor:
        """The tensor as an input of a request that the model makes. Raises ArenaFull, DriverError."""
        memory = self._device
        if memory.ordered and memory.offset >= 0:
            # The model has not looked at it, and has to share it from now on.
            memory.shared = True
            place: Place = Lent(memory.offset, memory.nbytes, memory.offset)
        else:
            place = channel.place_device(memory, True, "input '{}' of a request".format(self._name))
        return (self._name, self._datatype, self._shape, place)


def from_dlpack(name: str, given: Any) -> Tensor:
    """A tensor over memory of a GPU. Raises what `dlpack.imported` raises, and DriverError."""
    if isinstance(given, DeviceTensor):
        # Another name for it, as a request to another model may need
        return DeviceTensor(name, given._datatype, given._shape, given._device, given._devices)
    one = gpu(dlpack.device_of(given)[1])
    has_stream = type(given).__name__ != "PyCapsule"
    datatype, array = dlpack.imported(given, one.stream.handle.value)
    memory = DeviceMemory(one, address_of(array), array.nbytes, keeps=array)
    memory.ordered = has_stream
    return DeviceTensor(name, datatype, array.shape, memory, None)


def answer(
    devices: Devices,
    name: str,
    datatype: int,
    shape: Sequence[int],
    place: OnDevice,
    wanted: Optional[int],
    let_go: Callable[[int], None],
) -> Tensor:
    """An output of another model, on the GPU that is `wanted` if one is."""
    memory = devices.memory_at(place, let_go)
    memory.is_lease = True
    if wanted is not None and wanted != memory.gpu.number:
        memory = devices.copied(memory, wanted)
    return DeviceTensor(name, datatype, shape, memory, devices)


def uploaded(devices: Devices, tensor: Tensor, number: int) -> Tensor:
    """A tensor of the host on a GPU."""
    datatype, shape, buffer = tensor._payload()
    data = np.frombuffer(buffer, np.uint8) if isinstance(buffer, (bytes, memoryview)) else buffer.reshape(-1)
    return DeviceTensor(tensor._name, datatype, shape, devices.uploaded(data.view(np.uint8), number), devices)
