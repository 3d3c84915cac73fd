"""`Tensor`: a name, a data type, a shape, and memory that is read only when the model asks for it.

A tensor that a model makes has the model's array; elements of BYTES are taken out at once, as in upstream, so later
changes of the objects do not count. A tensor that arrives has bytes of its message, or a view of the arena:

- `as_numpy()` makes the array on its first call: a writable copy of bytes, the arena's memory itself (no copy).
- BYTES are decoded when looked at, and a tensor that is passed on is sent from the memory in which it came.
- Views of the arena's memory may outlive `execute`. All of them (slices, buffer exports, DLPack consumers, the Tensor
  itself) keep one memoryview alive, at the bottom of the chain of `base`; `_watch()` refers to it weakly.
- A view is read-only if others read its memory, too, or if it is small. A tensor that is passed on to another model
  (`_pass_on`) becomes read-only. A model that looks at such a tensor gets a copy of its own.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from stubserve_stub.api import bytes_tensor
from stubserve_stub.api.arguments import as_text, incompatible
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.wire import strings
from stubserve_stub.wire.arena import bottom_of
from stubserve_stub.wire.datatypes import BF16, BY_NUMBER, BYTES
from stubserve_stub.wire.places import Place, Zeros, zeros

if TYPE_CHECKING:
    # These import msgpack, which is missing where only the public module is wanted.
    from stubserve_stub.runtime.states import States
    from stubserve_stub.wire.messages import WireTensor

Array = np.ndarray  # of any shape and type
Source = Union[bytes, memoryview, None]

_NUMBERS: Dict[Any, int] = {kind.numpy: kind.number for kind in BY_NUMBER.values() if kind.numpy is not None}
# The numpy type in which memory of each data type is viewed; the blob of a BYTES tensor as plain bytes
_MEMORY: Dict[int, Any] = {kind.number: kind.numpy for kind in BY_NUMBER.values()}
_MEMORY[BF16] = np.dtype(np.uint16)
_MEMORY[BYTES] = np.dtype(np.uint8)


# numpy's strings: of bytes, of code points, and of any length
_STRINGS = "SUT"


def _of_other_type(dtype: np.dtype) -> int:
    """The data type for numpy's other types. Raises TritonModelException."""
    if dtype.char in _STRINGS:
        return BYTES
    if dtype.name == "bfloat16":
        return BF16
    raise TritonModelException("NumPy dtype is not supported.")


def _bfloat16() -> Any:
    """The type that the package ml_dtypes has for BF16. Raises TritonModelException if the environment has none."""
    try:
        import ml_dtypes  # not at the top: a model that never looks at BF16 does not need it
    except ImportError:
        raise TritonModelException(
            "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead."
            " as_numpy() needs the package ml_dtypes in the model's environment."
        ) from None
    return ml_dtypes.bfloat16


# Makes a tensor over memory of a GPU; None on servers without GPUs
_from_device: Optional[Callable[[str, Any], Tensor]] = None


def use_devices(from_device: Callable[[str, Any], Tensor]) -> None:
    """From now on models may give tensors in memory of GPUs."""
    global _from_device
    _from_device = from_device


class Tensor:
    """A named tensor: an input of a request, or an output of a response.

    `array` may have any data type of Triton that numpy has, BYTES as objects or as any of numpy's strings, and BF16 as
    `ml_dtypes.bfloat16`. Raises TypeError if it is no array, TritonModelException for other data types and an empty
    name.
    """

    __slots__ = ("__weakref__", "_array", "_datatype", "_elements", "_name", "_shape", "_source", "_storage")

    _name: str
    _datatype: int
    _shape: Sequence[int]
    # The memory as it came, or for BYTES as it goes
    _source: Source
    # The elements of BYTES that a model has made, or that came one by one
    _elements: Optional[List[bytes]]
    # The memory as an array (BF16: of uint16), once it has been looked at
    _storage: Optional[Array]
    # What as_numpy() returns
    _array: Optional[Array]
    # Whether this is a `DeviceTensor`
    _on_device = False

    def __init__(self, name: str, array: Array, /) -> None:
        if type(name) is not str or not name.isascii() or not isinstance(array, np.ndarray):
            text = as_text(name)
            if text is None or not isinstance(array, np.ndarray):
                raise incompatible("__init__", "Tensor(arg0: str, arg1: numpy.ndarray)", (name, array))
            name = text
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        dtype = array.dtype
        datatype = _NUMBERS.get(dtype)
        if datatype is None:
            datatype = _of_other_type(dtype)
        if not array.flags.c_contiguous:
            array = array.copy(order="C")
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array = array
        self._source = None
        if datatype == BYTES:
            self._elements = bytes_tensor.elements_of(array)
            self._storage = None
        else:
            self._elements = None
            self._storage = array if datatype != BF16 else array.view(np.uint16)

    @staticmethod
    def _received(
        name: str, datatype: int, shape: Sequence[int], data: Optional[bytes], view: Optional[memoryview]
    ) -> Tensor:
        """A tensor out of a message: `data` are its bytes, or else `view` is its memory in the arena."""
        self = _new(Tensor)
        self._name = name
        self._datatype = datatype
        self._shape = shape
        self._source = view if data is None else data
        self._elements = self._storage = self._array = None
        return self

    @staticmethod
    def _listed(name: str, shape: Sequence[int], elements: Sequence[bytes]) -> Tensor:
        """A tensor of BYTES out of a message that has its elements one by one."""
        self = Tensor._received(name, BYTES, shape, None, None)
        self._elements = list(elements)
        return self

    @staticmethod
    def _of_region(name: str, datatype: int, shape: Sequence[int], memory: Array) -> Tensor:
        """A tensor of any type but BYTES over `memory`, an array of bytes that is the tensor's own."""
        self = _new(Tensor)
        self._name = name
        self._datatype = datatype
        self._shape = shape
        storage = memory.view(_MEMORY[datatype]) if memory.nbytes else np.zeros(0, _MEMORY[datatype])
        if not storage.flags.aligned:
            storage = storage.copy()
        self._elements = None
        self._storage = storage.reshape(shape)
        self._source, self._array = (b"", None) if datatype == BF16 else (None, self._storage)
        return self

    @staticmethod
    def _of_zeros(name: str, datatype: int, shape: Sequence[int], nbytes: int) -> Tensor:
        memory = bytes(nbytes) if datatype == BYTES else zeros(nbytes)
        if isinstance(memory, bytes):
            return Tensor._received(name, datatype, shape, memory, None)
        return Tensor._of_region(name, datatype, shape, memory.view(np.ndarray))

    @staticmethod
    def from_dlpack(name: str, tensor: Any, /) -> Tensor:
        """A tensor over the memory of a DLPack capsule, or of an object with `__dlpack__`; no copy.

        Raises what `dlpack.imported` raises.
        """
        text = as_text(name)
        if text is None:
            raise incompatible("from_dlpack", "(arg0: str, arg1: object) -> Tensor", (name, tensor))
        if not text:
            raise TritonModelException("Tensor name cannot be an empty string.")
        # Not at the top: few models need it, and ctypes would make every stub start later.
        from stubserve_stub.api import dlpack

        if dlpack.device_of(tensor)[0] == dlpack.CUDA:
            if _from_device is None:
                raise TritonModelException(
                    "The DLPack tensor is in GPU memory, and the server has no GPU for its models: copy it to the CPU."
                )
            return _from_device(text, tensor)
        self = _new(Tensor)
        self._name = text
        self._datatype, self._storage = dlpack.imported(tensor)
        self._shape = self._storage.shape
        self._source = self._elements = self._array = None
        return self

    def name(self) -> str:
        return self._name

    def shape(self) -> List[int]:
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the data type in Triton's DataType enum."""
        return self._datatype

    def is_cpu(self) -> bool:
        return True

    def as_numpy(self) -> Array:
        """The tensor as an array, the same object on every call; BYTES as objects of type `bytes`.

        BF16 is an array of `ml_dtypes.bfloat16`. Raises TritonModelException for BF16 where there is no such package,
        and for a BYTES tensor whose memory is malformed.
        """
        array = self._array
        if array is not None:
            return array
        if self._datatype == BYTES:
            if self._elements is not None:
                array = bytes_tensor.object_array(self._elements).reshape(self._shape)
            else:
                assert self._source is not None
                array = bytes_tensor.decode_array(self._source).reshape(self._shape)
        else:
            bfloat16 = _bfloat16() if self._datatype == BF16 else None
            if self._source is None:
                # A DLPack producer does not expect writes to its memory.
                assert self._storage is not None
                array = self._storage.copy()
            else:
                array = self._memory()
            if bfloat16 is not None:
                array = array.view(bfloat16)
        self._array = array
        return array

    def _memory(self) -> Array:
        """The memory as an array in its own data type and shape; of BYTES, the blob."""
        if self._storage is None:
            source, dtype = self._blob() if self._datatype == BYTES else self._source, _MEMORY[self._datatype]
            assert source is not None
            shape: Any = (len(source),) if self._datatype == BYTES else self._shape
            if isinstance(source, bytes) or not source:
                storage: Array = np.ndarray(shape, dtype, bytearray(source))
            else:
                storage = np.frombuffer(source, dtype).reshape(shape)
                if not storage.flags.aligned or source.readonly:
                    # From now on the copy is the tensor's memory, and nothing refers to the arena.
                    storage = storage.copy()
                    self._source = b""
            self._storage = storage
        return self._storage

    def to_dlpack(self) -> Any:
        """A `dltensor` capsule over the tensor's memory. Raises TritonModelException for BYTES."""
        from stubserve_stub.api import dlpack

        return dlpack.export(self, self._datatype, self._memory())

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.to_dlpack()

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (1, 0)

    def __reduce__(self) -> Any:
        # As upstream. A copy would have a view of memory that `_pass_on` gives away, and a large tensor has no pickle.
        raise TypeError("cannot pickle or copy a Tensor: take what as_numpy() returns")

    def _watch(self) -> Optional[weakref.ref[memoryview]]:
        """A reference that dies with the last view of the memory of a tensor in the arena; None for other tensors.

        The Tensor itself counts as a view: a model that keeps it may look at its memory later.
        """
        if type(self._source) is not memoryview or not self._source:
            return None
        if self._source.readonly:
            return weakref.ref(self._source)
        base = bottom_of(self._memory())
        return None if base is None else weakref.ref(base)

    def _nbytes(self) -> int:
        """The size of a tensor that was received."""
        source = self._source
        if source is None:
            return 0
        return len(source) if isinstance(source, bytes) else source.nbytes

    def _pass_on(self) -> Optional[memoryview]:
        """The memory of a tensor in the arena, read-only from now on; None if the model may have written to it."""
        source = self._source
        if type(source) is not memoryview or self._storage is not None:
            return None
        if not source.readonly:
            source = self._source = source.toreadonly()
        return source

    def _blob(self) -> Union[bytes, memoryview]:
        """The bytes of a tensor that has no array of its own, or of BYTES."""
        if self._source is None:
            assert self._elements is not None
            self._source = strings.join(self._elements)
        return self._source

    def _placed(self, placer: Any, stays: bool, in_regions: Any = None) -> Place:
        """Of a tensor in memory of a GPU: its place as an output. Raises ArenaFull, Refusal, DriverError."""
        raise NotImplementedError

    def _outgoing(self, channel: Any) -> WireTensor:
        """Of a tensor in memory of a GPU: its form as an input of a request. Raises ArenaFull, DriverError."""
        raise NotImplementedError

    def _payload(self) -> Tuple[int, Sequence[int], Union[bytes, memoryview, Array]]:
        """(datatype, shape, contiguous buffer): what goes over the wire."""
        storage = self._storage
        if storage is None or self._datatype == BYTES:
            source = self._source
            return (self._datatype, self._shape, self._blob() if source is None else source)
        if type(storage) is not np.ndarray:
            storage = storage.view(np.ndarray)
        return (self._datatype, self._shape, storage)


def state_tensor(states: States, wire: WireTensor, in_place: bool) -> Tensor:
    """A state of a sequence as an input: a copy that is the model's own, or `in_place` the state itself."""
    name, datatype, shape, place = wire
    if isinstance(place, bytes):
        return Tensor._received(name, datatype, shape, place, None)
    if isinstance(place, Zeros):
        return Tensor._of_zeros(name, datatype, shape, place.nbytes)
    dtype = None if datatype == BYTES else BY_NUMBER[datatype].numpy
    if dtype is None:
        return Tensor._received(name, datatype, shape, bytes(states.memory(wire)), None)
    if in_place:
        return Tensor(name, states.own_memory(wire).view(dtype).reshape(shape))
    return Tensor(name, states.memory(wire).view(dtype).reshape(shape).copy())


_new = object.__new__
