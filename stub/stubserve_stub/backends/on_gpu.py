"""What native backends share on GPUs: inputs are brought there, outputs stay there until they are answered.

- An input of one request that lies on the GPU already is read where it is. Every other one is copied into a block of
  the stub's pool: rows of several requests one behind the other, from the host or from a GPU. So a batch is joined by
  the copies that it needs anyway.
- An output on the GPU (`OnGpu`) is divided among its requests without a copy. What is to stay there is answered from a
  block of the pool, and what goes to the host is copied there.

Between two batches a stub keeps the blocks of inputs, and nothing else.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.gather import Gathered, Gatherer, joined_shape, staying
from stubserve_stub.backends.native import InputView, NativeRequest, NativeResponse
from stubserve_stub.device import gpu as gpus
from stubserve_stub.runtime.batch import Batch
from stubserve_stub.runtime.devices import DeviceMemory, Devices
from stubserve_stub.runtime.outputs import RegionWriter
from stubserve_stub.wire.arena import address_of

# The alignment of addresses that frameworks read, as cudaMalloc gives them
_ALIGNMENT = 256


class OnGpu:
    """The bytes from `start` to `end` of an output's memory on a GPU; slices of it are others."""

    def __init__(self, memory: DeviceMemory, start: int, end: int) -> None:
        self._memory = memory
        self._start = start
        self._end = end

    def __len__(self) -> int:
        return self._end - self._start

    def __getitem__(self, part: slice) -> "OnGpu":
        start, end, _ = part.indices(len(self))
        return OnGpu(self._memory, self._start + start, self._start + end)

    def __bytes__(self) -> bytes:
        return self.memory.tobytes()

    @property
    def memory(self) -> DeviceMemory:
        whole = self._memory
        part = DeviceMemory(whole.gpu, whole.address + self._start, len(self), keeps=whole)
        part.ordered = whole.ordered
        return part


class GpuGatherer(Gatherer):
    """Leaves the joining of inputs to the copies to a GPU: each but one of BYTES has `Parts` as its memory."""

    def gather(self, requests: Sequence[NativeRequest]) -> Gathered:
        """As any run; its `outputs` are a dict, which says of each whether some request wants it to stay on the GPU."""
        gathered = super().gather(requests)
        stay = {name for request in requests for name in staying(request.outputs)}
        return gathered._replace(outputs={name: name in stay for name in gathered.outputs})

    def _joined(self, views: Sequence[InputView]) -> InputView:
        view = views[0]
        return InputView(view.name, view.datatype, joined_shape(views), Parts([one.memory for one in views]))


class Parts:
    """The memory of one input of several requests: arrays, bytes, or memory of GPUs, one behind the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return sum(part.nbytes if isinstance(part, DeviceMemory) else len(part) for part in self.parts)

    def whole(self) -> Optional[DeviceMemory]:
        """The memory of a GPU in which all of it lies, at an address that others can read; None if it does not."""
        (first, *others) = self.parts
        return first if not others and isinstance(first, DeviceMemory) and not first.address % _ALIGNMENT else None

    @classmethod
    def wrap(cls, memory: Any) -> "Parts":
        return memory if isinstance(memory, Parts) else cls([memory])

    def on_host(self) -> np.ndarray:
        """A copy on the host, of a shape tensor."""
        arrays = [part.on_host() if isinstance(part, DeviceMemory) else as_array(part) for part in self.parts]
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0].copy()


def as_array(memory: Any) -> np.ndarray:
    return np.frombuffer(memory, np.uint8) if isinstance(memory, bytes) else np.asarray(memory).reshape(-1)


class Blocks:
    """Memory of one GPU for the tensors of an instance: one block for each input, which grows, and new ones."""

    def __init__(self, devices: Devices, number: int) -> None:
        self._devices = devices
        self.gpu = gpus.gpu(number)
        self._inputs: Dict[str, DeviceMemory] = {}

    def new(self, nbytes: int, holder: str) -> DeviceMemory:
        """Raises PoolFull, DriverError. `holder` is what errors call it."""
        return self._devices.allocate(self.gpu.number, nbytes, holder)

    def filled(self, name: str, memory: Any) -> Tuple[int, Any]:
        """The address at which an input's bytes will be, and what has to live until they have been read.

        The stream is not waited for. The next input of that name is in the same block.
        """
        parts = Parts.wrap(memory)
        given = parts.whole()
        if given is not None:
            return given.address, given
        nbytes = len(parts)
        block = self._inputs.get(name)
        if block is None or block.nbytes < nbytes:
            block = self._inputs[name] = self.new(nbytes, f"input '{name}'")
        return block.address, self._copied(block, parts)

    def fresh(self, name: str, memory: Any, may_share: bool) -> DeviceMemory:
        """An input's bytes, in memory that is its alone, or where they lie already if it `may_share`."""
        parts = Parts.wrap(memory)
        given = parts.whole() if may_share else None
        if given is not None:
            return given
        block = self.new(len(parts), f"input '{name}'")
        alive = self._copied(block, parts)
        self.gpu.stream.synchronize()
        del alive
        return block

    @staticmethod
    def on_host(memory: Any) -> np.ndarray:
        """A copy of an input's bytes on the host."""
        return Parts.wrap(memory).on_host()

    def wrap_output(self, address: int, nbytes: int, keeps: Any) -> OnGpu:
        """An output of a framework's, in memory that `keeps` has. All work of the process on the GPU is waited for."""
        memory = DeviceMemory(self.gpu, address, nbytes, keeps=keeps)
        memory.ordered = False
        return OnGpu(memory, 0, nbytes)

    def placed(
        self, request: NativeRequest, response: NativeResponse, batch: Batch, in_regions: Optional[RegionWriter]
    ) -> Iterator[Tuple[str, int, Sequence[int], Any]]:
        """The outputs of a response, those on the GPU with their places."""
        stay = staying(request.outputs)
        for name, datatype, shape, memory in response.outputs:
            if isinstance(memory, OnGpu):
                if in_regions is None:
                    memory = batch.place_device(memory.memory, name in stay, f"output '{name}'")
                else:
                    memory = memory.memory.on_host()
            yield name, datatype, shape, memory

    def _copied(self, block: DeviceMemory, parts: "Parts") -> List[Any]:
        """Adds the copies of the parts into a block to the stream. What is returned has to live until they are done."""
        at = block.address
        alive: List[Any] = []
        for part in parts.parts:
            if isinstance(part, DeviceMemory):
                part.wait()
                self.gpu.stream.copy(at, part.address, part.nbytes)
                at += part.nbytes
                alive.append(part)
                continue
            array = as_array(part)
            if array.nbytes:
                self.gpu.stream.copy_up(at, address_of(array), array.nbytes)
            at += array.nbytes
            alive.append(array)
        return alive
