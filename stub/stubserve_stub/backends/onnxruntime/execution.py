"""Runs a session on memory that others own: inputs where they lie, outputs where they are sent from.

Inputs are bound by address, so they are not copied, and the session only reads them. They stay bound until others take
their place. To bind an output, its shape has to be known beforehand. The shape of the last run with inputs of the same
shapes is right, unless output shapes depend on values. So:

1. an output whose shape is known, and which does not fit into a message, is bound to room in the stub's own segment;
2. the others are made by onnxruntime in memory of its own, and copied once: into the message if they are small, else
   when they are sent;
3. if a run with bound outputs fails, it is made again without them, because onnxruntime refuses memory of another
   shape. An output whose shape varies is not bound again. A session has no state, so the second run gives the same;
4. a bound output that lies somewhere else after all (a graph may return an input) is taken from there.

On a GPU inputs are bound there (`backends.on_gpu`), for each run. An output that stays there is made by onnxruntime in
memory of its own on the GPU; the others it copies down to where they are bound. A machine with a GPU has not shown this
yet.

Strings cannot be bound. A model with string inputs runs on arrays; its outputs are copied once.

Only wanted outputs are made and sent. That saves memory, not computation: as in Triton, the whole graph runs.
"""

from __future__ import annotations

import collections
import ctypes
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.backends.contract import Contract
from stubserve_stub.backends.gather import Gathered, staying
from stubserve_stub.backends.loading import TensorInfo
from stubserve_stub.backends.native import InputView, NativeOutput
from stubserve_stub.backends.onnxruntime.contract import ELEMENT_TYPES
from stubserve_stub.backends.onnxruntime.session import explain
from stubserve_stub.runtime.failure import Refusal
from stubserve_stub.wire.arena import address_of
from stubserve_stub.wire.datatypes import BYTES, nbytes_of
from stubserve_stub.wire.layout import INLINE_BYTES

Room = Callable[[int], Optional[np.ndarray]]
Shape = Tuple[int, ...]

# How many combinations of input shapes are remembered
_REMEMBERED = 512

_CPU, _GPU = "cpu", "cuda"


class Execution:
    """One session and its bindings.

    `room` gives memory of the stub's segment, or None; `scalars` are the sent shapes of outputs without dimensions.
    `blocks` is the memory of its GPU (`backends.on_gpu`), None for one on the CPU.
    """

    def __init__(
        self,
        session: Any,
        contract: Contract,
        run_options: Any,
        room: Room,
        scalars: Dict[str, Sequence[int]],
        blocks: Any = None,
    ) -> None:
        self._blocks = blocks
        self._session = session
        self._inputs = {**contract.initializers, **contract.inputs}
        self._outputs = contract.outputs
        self._run_options = run_options
        self._room = room
        self._scalars = scalars
        self._takes_strings = any(info.datatype == BYTES for info in self._inputs.values())
        self._binding = session.io_binding()
        # The bound inputs: names, data types, shapes, addresses
        self._bound: Any = ()
        # The shapes of outputs by those of the inputs, oldest first; and the outputs whose shapes vary all the same
        self._known: "collections.OrderedDict[Any, Dict[str, Shape]]" = collections.OrderedDict()
        self._varying: List[str] = []

    def run(self, batch: Gathered) -> Dict[str, NativeOutput]:
        """The wanted outputs. Raises Refusal with onnxruntime's error."""
        if not batch.outputs:
            return {}
        try:
            if self._takes_strings:
                return self._run_on_arrays(batch)
            return self._run_bound(batch)
        except Refusal:
            raise
        except Exception as error:
            code, text = explain(error)
            raise Refusal(f"onnx runtime error {code}: {text}") from None

    # Bound memory

    def _run_bound(self, batch: Gathered) -> Dict[str, NativeOutput]:
        key = self._bind_inputs(batch.inputs)
        known = self._known.get(key, {})
        rooms = {}
        try:
            for name in batch.outputs:
                if self._stays(name, batch):
                    self._binding.bind_output(name, _GPU, self._blocks.gpu.number)
                    continue
                memory = self._memory_for(name, known.get(name), batch.requests)
                if memory is None:
                    self._binding.bind_output(name, _CPU)
                else:
                    rooms[name] = (known[name], memory)
                    element_type = ELEMENT_TYPES[self._outputs[name].datatype]
                    self._binding.bind_output(name, _CPU, 0, element_type, known[name], address_of(memory))
            try:
                self._run_with_binding()
            except Exception:
                if not rooms:
                    raise
                outputs = self._run_unbound(batch)
                self._varying += [name for name, (shape, _) in rooms.items() if tuple(outputs[name].shape) != shape]
                rooms = {}
            else:
                outputs = self._collect(batch, rooms)
        finally:
            self._binding.clear_binding_outputs()
        self._remember(key, outputs)
        return outputs

    def _run_unbound(self, batch: Gathered) -> Dict[str, NativeOutput]:
        self._binding.clear_binding_outputs()
        for name in batch.outputs:
            place = (_GPU, self._blocks.gpu.number) if self._stays(name, batch) else (_CPU,)
            self._binding.bind_output(name, *place)
        self._run_with_binding()
        return self._collect(batch, {})

    def _run_with_binding(self) -> None:
        if self._blocks is None:
            self._session.run_with_iobinding(self._binding, self._run_options)
            return
        # onnxruntime has streams of its own, which wait for no other one.
        self._blocks.gpu.stream.synchronize()
        self._session.run_with_iobinding(self._binding, self._run_options)
        self._binding.synchronize_outputs()

    def _stays(self, name: str, batch: Gathered) -> bool:
        """Whether a request wants an output to stay on the GPU."""
        return name in staying(batch.outputs) and self._outputs[name].datatype != BYTES

    def _bind_inputs(self, inputs: Mapping[str, InputView]) -> Any:
        """Binds the inputs that are not bound yet. Returns the key of their shapes."""
        if self._blocks is not None:
            return self._bind_on_gpu(inputs)
        shapes = []
        places = []
        for name, view in inputs.items():
            # A tensor without dimensions is [1] in a configuration.
            shapes.append((name, tuple(view.shape) if self._inputs[name].dims else ()))
            places.append((view.datatype, address_of(view.memory)))
        if self._bound != (shapes, places):
            self._bound = ()
            self._binding.clear_binding_inputs()
            for (name, shape), (datatype, address) in zip(shapes, places):
                self._binding.bind_input(name, _CPU, 0, ELEMENT_TYPES[datatype], shape, address)
            self._bound = (shapes, places)
        return tuple(shapes)

    def _bind_on_gpu(self, inputs: Mapping[str, InputView]) -> Any:
        self._binding.clear_binding_inputs()
        shapes, self._bound = [], []
        for name, view in inputs.items():
            shape = tuple(view.shape) if self._inputs[name].dims else ()
            address, alive = self._blocks.filled(name, view.memory)
            kind = ELEMENT_TYPES[view.datatype]
            self._binding.bind_input(name, _GPU, self._blocks.gpu.number, kind, shape, address)
            shapes.append((name, shape))
            self._bound.append(alive)
        return tuple(shapes)

    def _memory_for(self, name: str, shape: Optional[Shape], requests: int) -> Optional[np.ndarray]:
        """Room for an output, None where onnxruntime shall allocate it."""
        info = self._outputs[name]
        if shape is None or info.datatype == BYTES or name in self._varying:
            return None
        nbytes = nbytes_of(info.datatype, shape)
        # Small parts go into messages anyway.
        return self._room(nbytes) if nbytes > INLINE_BYTES * requests else None

    def _collect(self, batch: Gathered, rooms: Dict[str, Tuple[Shape, np.ndarray]]) -> Dict[str, NativeOutput]:
        outputs = {}
        for name, value in zip(batch.outputs, self._binding.get_outputs()):
            info = self._outputs[name]
            if info.datatype == BYTES:
                outputs[name] = self._strings(info, value.numpy())
                continue
            address = value.data_ptr()
            memory: Any
            if self._stays(name, batch):
                shape = tuple(value.shape())
                memory = self._blocks.wrap_output(address, nbytes_of(info.datatype, shape), value)
                outputs[name] = NativeOutput(name, info.datatype, self._sent_shape(info, shape), memory)
                continue
            if name in rooms and address == address_of(rooms[name][1]):
                shape, memory = rooms[name]
            else:
                shape = tuple(value.shape())
                nbytes = nbytes_of(info.datatype, shape)
                small = nbytes <= INLINE_BYTES * batch.requests
                memory = ctypes.string_at(address, nbytes) if small else _memory_at(address, nbytes, value)
            outputs[name] = NativeOutput(name, info.datatype, self._sent_shape(info, shape), memory)
        return outputs

    def _remember(self, key: Any, outputs: Dict[str, NativeOutput]) -> None:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = {}
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        for name, output in outputs.items():
            if name not in known and self._outputs[name].dims:
                known[name] = tuple(output.shape)

    # Arrays

    def _run_on_arrays(self, batch: Gathered) -> Dict[str, NativeOutput]:
        feeds = {name: self._array(name, view) for name, view in batch.inputs.items()}
        outputs = {}
        arrays = self._session.run(list(batch.outputs), feeds, self._run_options)
        for name, array in zip(batch.outputs, arrays):
            info = self._outputs[name]
            if info.datatype == BYTES:
                outputs[name] = self._strings(info, array)
            else:
                memory = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                outputs[name] = NativeOutput(name, info.datatype, self._sent_shape(info, array.shape), memory)
        return outputs

    def _array(self, name: str, view: InputView) -> np.ndarray:
        shape: Any = tuple(view.shape) if self._inputs[name].dims else ()
        array: np.ndarray = view.memory
        if self._blocks is not None and view.datatype != BYTES:
            array = self._blocks.on_host(view.memory)
        if view.datatype != BYTES:
            array = array.view(ELEMENT_TYPES[view.datatype])
        return array.reshape(shape)

    def _strings(self, info: TensorInfo, array: Any) -> NativeOutput:
        elements = np.empty(array.size, np.object_)
        elements[:] = [str(element).encode() for element in array.reshape(-1).tolist()]
        return NativeOutput(info.name, info.datatype, self._sent_shape(info, array.shape), elements)

    def _sent_shape(self, info: TensorInfo, shape: Shape) -> Sequence[int]:
        return shape if info.dims else self._scalars.get(info.name, shape)


def _memory_at(address: int, nbytes: int, owner: Any) -> np.ndarray:
    """Memory of onnxruntime's as an array, which keeps its owner."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    memory.owner = owner
    return np.frombuffer(memory, np.uint8)
