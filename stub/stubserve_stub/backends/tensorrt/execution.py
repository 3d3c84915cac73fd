"""Runs an engine on memory of its GPU: inputs are brought there, outputs stay there until they are answered.

- An input of one request that lies on the GPU already is read where it is. Every other one is copied into a block of
  the stub's pool: rows of several requests one behind the other, from the host or from a GPU. So a batch is joined by
  the copies that it needs anyway.
- An output is a block of the pool (`OnGpu`), divided among its requests without a copy. What is to stay on the GPU is
  answered from there. What goes to the host goes there by one copy, into room that it is sent from.
- A shape tensor lies on the host. An output whose shape only its values say is made while the engine runs
  (`IOutputAllocator`).

All work is added to one stream. It is waited for once, before anything is answered. Between two batches the stub keeps
the blocks of inputs, and nothing else.
"""

from __future__ import annotations

from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.gather import Gathered, Gatherer, joined_shape
from stubserve_stub.backends.loading import TensorInfo
from stubserve_stub.backends.native import InputView, NativeOutput, NativeRequest
from stubserve_stub.backends.tensorrt.plan import Log, Plan, Profile, Shape, nearest
from stubserve_stub.device.driver import DriverError
from stubserve_stub.device.gpu import Gpu
from stubserve_stub.runtime.devices import DeviceMemory, Devices
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.arena import ArenaFull, address_of
from stubserve_stub.wire.datatypes import BY_NUMBER, nbytes_of
from stubserve_stub.wire.layout import INLINE_BYTES

# Of addresses that an engine reads, as cudaMalloc gives them
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
        return DeviceMemory(whole.gpu, whole.address + self._start, len(self), keeps=whole)


class PlanGatherer(Gatherer):
    """Leaves the joining of inputs to the copies to a GPU."""

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

    @classmethod
    def of(cls, memory: Any) -> "Parts":
        return memory if isinstance(memory, Parts) else cls([memory])

    def on_host(self) -> np.ndarray:
        """A copy on the host, of a shape tensor."""
        arrays = [part.on_host() if isinstance(part, DeviceMemory) else as_array(part) for part in self.parts]
        return np.concatenate(arrays) if len(arrays) > 1 else arrays[0].copy()


def as_array(memory: Any) -> np.ndarray:
    return np.frombuffer(memory, np.uint8) if isinstance(memory, bytes) else np.asarray(memory).reshape(-1)


class Blocks:
    """Blocks of the stub's pool on one GPU: one for each input, which grows, and new ones for outputs."""

    def __init__(self, devices: Devices, gpu: Gpu) -> None:
        self._devices = devices
        self.gpu = gpu
        self._inputs: Dict[str, DeviceMemory] = {}

    def output(self, name: str, nbytes: int) -> DeviceMemory:
        """Raises PoolFull, DriverError."""
        return self._devices.own(self.gpu.number, nbytes, f"output '{name}'")

    def filled(self, name: str, memory: Any) -> Tuple[int, Any]:
        """The address at which an input's bytes will be, and what has to live until they have been read."""
        parts = Parts.of(memory).parts
        if len(parts) == 1 and isinstance(parts[0], DeviceMemory) and not parts[0].address % _ALIGNMENT:
            return parts[0].address, parts[0]
        sizes = [part.nbytes if isinstance(part, DeviceMemory) else len(part) for part in parts]
        block = self._inputs.get(name)
        if block is None or block.nbytes < sum(sizes):
            block = self._inputs[name] = self._devices.own(self.gpu.number, sum(sizes), f"input '{name}'")
        at = block.address
        alive: List[Any] = []
        for part, nbytes in zip(parts, sizes):
            if isinstance(part, DeviceMemory):
                part.wait()
                self.gpu.stream.copy(at, part.address, nbytes)
                alive.append(part)
            elif nbytes:
                array = as_array(part)
                self.gpu.stream.copy_up(at, address_of(array), nbytes)
                alive.append(array)
            at += nbytes
        return block.address, alive


class PlanExecution:
    """An engine with a context for each profile. `room` gives memory of the stub's segment for an output that comes
    down from a GPU, None where there is none. `scalars` are the sent shapes of outputs without dimensions.
    """

    def __init__(
        self,
        tensorrt: Any,
        log: Log,
        plan: Plan,
        profiles: Sequence[Profile],
        blocks: Blocks,
        instance: str,
        room: Callable[[int, DeviceMemory], Optional[np.ndarray]],
        scalars: Mapping[str, Sequence[int]],
    ) -> None:
        self._tensorrt = tensorrt
        self._log = log
        self._plan = plan
        self._profiles = profiles
        self._blocks = blocks
        self._instance = instance
        self._room = room
        self._scalars = scalars
        self._contexts = {profile.number: self._new_context(profile) for profile in profiles}

    def run(self, batch: Gathered) -> Dict[str, NativeOutput]:
        """The wanted outputs, on the GPU or on the host. Raises Refusal with the error of TensorRT or the driver."""
        if not batch.outputs:
            return {}
        try:
            return self._run(batch)
        except ArenaFull as full:
            raise Refusal(str(full), full.code) from None
        except DriverError as error:
            raise Refusal(str(error)) from None

    def _run(self, batch: Gathered) -> Dict[str, NativeOutput]:
        on_host = {
            name: Parts.of(view.memory).on_host() for name, view in batch.inputs.items() if name in self._plan.on_host
        }
        shapes = {name: self._given(name, view, on_host) for name, view in batch.inputs.items()}
        context = self._contexts[nearest(self._profiles, shapes, self._instance).number]
        stream = self._blocks.gpu.stream
        alive: List[Any] = [on_host]
        try:
            for name, view in batch.inputs.items():
                if name in on_host:
                    address = address_of(on_host[name])
                else:
                    address, lives = self._blocks.filled(name, view.memory)
                    alive.append(lives)
                self._do(context.set_tensor_address(name, address), f"set the address of input '{name}'")
                shape = tuple(view.shape) if self._plan.contract.inputs[name].dims else ()
                self._do(context.set_input_shape(name, shape), f"set the shape of input '{name}' to {list(shape)}")
            made = {name: self._output(context, info) for name, info in self._plan.contract.outputs.items()}
            self._do(context.execute_async_v3(stream.handle.value), "run the engine")
            outputs = self._answered(batch, made)
        finally:
            # Before anything is let go of, also after an error
            stream.synchronize()
        return outputs

    def _new_context(self, profile: Profile) -> Any:
        context = self._plan.engine.create_execution_context()
        if context is None:
            raise Refusal(f"unable to create an execution context for '{self._instance}': {self._log.taken()}")
        stream = self._blocks.gpu.stream
        chosen = context.set_optimization_profile_async(profile.number, stream.handle.value)
        self._do(chosen, f"choose profile {profile.number}")
        stream.synchronize()
        return context

    def _given(self, name: str, view: InputView, on_host: Mapping[str, np.ndarray]) -> Shape:
        """What a profile limits: the shape of an input, or the values of a shape tensor."""
        if name in self._plan.contract.shape_tensors:
            values: Any = on_host[name].view(BY_NUMBER[view.datatype].name.lower())
            return tuple(values.tolist())
        return tuple(view.shape) if self._plan.contract.inputs[name].dims else ()

    def _output(self, context: Any, info: TensorInfo) -> "_Made":
        made = _Made(info, tuple(context.get_tensor_shape(info.name)))
        if info.name in self._plan.on_host:
            made.host = np.empty(nbytes_of(info.datatype, made.shape), np.uint8)
            address = address_of(made.host)
        elif -1 in made.shape:
            made.allocator = self._allocator(made)
            self._do(context.set_output_allocator(info.name, made.allocator), f"have output '{info.name}' be allocated")
            return made
        else:
            made.memory = self._blocks.output(info.name, nbytes_of(info.datatype, made.shape))
            address = made.memory.address
        self._do(context.set_tensor_address(info.name, address), f"set the address of output '{info.name}'")
        return made

    def _allocator(self, made: "_Made") -> Any:
        """Gives an output memory when its size is known."""
        blocks = self._blocks
        base = self._tensorrt.IOutputAllocator

        class Allocator(base):  # type: ignore[misc, valid-type]  # a class of a package that may be missing
            def __init__(self) -> None:
                base.__init__(self)

            def reallocate_output(self, name: str, memory: Any, size: int, alignment: int) -> Optional[int]:
                return self.reallocate_output_async(name, memory, size, alignment, None)

            def reallocate_output_async(
                self, name: str, memory: Any, size: int, alignment: int, stream: Any
            ) -> Optional[int]:
                try:
                    made.memory = blocks.output(name, size)
                except Exception as error:
                    made.problem = str(error)
                    return None
                return made.memory.address

            def notify_shape(self, name: str, shape: Any) -> None:
                made.shape = tuple(shape)

        return Allocator()

    def _answered(self, batch: Gathered, made: Mapping[str, "_Made"]) -> Dict[str, NativeOutput]:
        stay = staying(batch.outputs)
        outputs = {}
        for name in batch.outputs:
            one = made[name]
            if one.problem:
                raise Refusal(one.problem)
            shape: Sequence[int] = one.shape if one.info.dims else self._scalars.get(name, one.shape)
            nbytes = nbytes_of(one.info.datatype, one.shape)
            memory: Any
            if one.host is not None:
                # Written while the engine runs
                self._blocks.gpu.stream.synchronize()
                memory = one.host
            elif name in stay and one.memory is not None:
                memory = OnGpu(one.memory, 0, nbytes)
            else:
                memory = self._down(one.memory, nbytes, batch.requests)
            outputs[name] = NativeOutput(name, one.info.datatype, shape, memory)
        return outputs

    def _down(self, memory: Optional[DeviceMemory], nbytes: int, requests: int) -> np.ndarray:
        """Room of the host that these bytes will be in when the stream has been waited for."""
        if memory is None or not nbytes:
            return np.empty(0, np.uint8)
        # Small parts go into messages anyway.
        room = self._room(nbytes, memory) if nbytes > INLINE_BYTES * requests else None
        if room is None:
            room = np.empty(nbytes, np.uint8)
        self._blocks.gpu.stream.copy_down(address_of(room), memory.address, nbytes)
        return room

    def _do(self, done: bool, what: str) -> None:
        if not done:
            raise Refusal(f"TensorRT failed to {what} for '{self._instance}': {self._log.taken()}")


def staying(outputs: Collection[str]) -> Collection[str]:
    """Those of a request's outputs that stay on the GPU, which it says of each if any of them may."""
    return [name for name, stays in outputs.items() if stays] if isinstance(outputs, dict) else ()


class _Made:
    """One output of a run: `memory` on the GPU, or `host`. `problem` says why it could not be allocated."""

    def __init__(self, info: TensorInfo, shape: Shape) -> None:
        self.info = info
        self.shape = shape
        self.memory: Optional[DeviceMemory] = None
        self.host: Optional[np.ndarray] = None
        self.allocator: Any = None
        self.problem = ""
