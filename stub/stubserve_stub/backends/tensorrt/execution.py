"""Runs an engine on memory of its GPU: inputs are brought there, outputs stay there until they are answered.

- Inputs are read where they are, or copied into blocks of the pool (`backends.on_gpu`).
- An output is a block of the pool. What is to stay on the GPU is answered from there. What goes to the host goes there
  by one copy, into room that it is sent from.
- A shape tensor lies on the host. Where only the values of an output say its shape, it is made while the engine runs
  (`IOutputAllocator`).

All work is added to one stream. It is waited for once, before anything is answered.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import numpy as np

from stubserve_stub.backends.gather import Gathered, staying
from stubserve_stub.backends.loading import TensorInfo
from stubserve_stub.backends.native import InputView, NativeOutput
from stubserve_stub.backends.on_gpu import Blocks, OnGpu, Parts
from stubserve_stub.backends.tensorrt.plan import Log, Plan, Profile, Shape, nearest
from stubserve_stub.device.driver import DriverError
from stubserve_stub.runtime.devices import DeviceMemory
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.arena import ArenaFull, address_of
from stubserve_stub.wire.datatypes import BY_NUMBER, nbytes_of
from stubserve_stub.wire.layout import INLINE_BYTES


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
            name: Parts.wrap(view.memory).on_host() for name, view in batch.inputs.items() if name in self._plan.on_host
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
            ran = context.execute_async_v3(stream.handle.value)
            for one in made.values():
                if one.problem is not None:
                    raise one.problem
            self._do(ran, "run the engine")
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
            made.memory = self._blocks.new(nbytes_of(info.datatype, made.shape), f"output '{info.name}'")
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
                    made.memory = blocks.new(size, f"output '{name}'")
                except Exception as error:
                    made.problem = error
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


class _Made:
    """One output of a run: `memory` on the GPU, or `host`. `problem` is why it could not be allocated."""

    def __init__(self, info: TensorInfo, shape: Shape) -> None:
        self.info = info
        self.shape = shape
        self.memory: Optional[DeviceMemory] = None
        self.host: Optional[np.ndarray] = None
        self.allocator: Any = None
        self.problem: Optional[Exception] = None
