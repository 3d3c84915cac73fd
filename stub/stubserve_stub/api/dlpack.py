"""DLPack: tensors exchanged with torch, numpy, jax, cupy without a copy.

A capsule needs two C functions, a destructor and a deleter. Python functions behind ctypes will not do: if they run
while an exception unwinds a model's frame, the interpreter loses that exception. So these capsules are numpy's own,
with numpy's C functions:

- *Export*: an array over the tensor's memory, based on a holder that references the Tensor, gives the capsule. numpy
  has no BF16, and older versions have no bool: such memory is exported as uint16 or uint8, and the type code inside the
  capsule is corrected afterwards. So is the device of memory of a GPU, which numpy never reads.
- *Import*: the capsule is checked here, its type code set to what numpy knows, and numpy consumes it. The memory goes
  back to its producer when the last view of numpy's array dies.

Costs about 6 µs each way. Needs numpy 1.22; capsules are of the classic, unversioned kind, as upstream's are.
"""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES

# Devices and type codes of dlpack.h.
CPU = 1
CUDA = 2
CUDA_HOST = 3
_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

_KINDS = {"b": _BOOL, "u": _UINT, "i": _INT, "f": _FLOAT}

# (code, bits) of each data type, and back.
_CODES: Dict[int, Tuple[int, int]] = {
    number: (_BFLOAT if kind.numpy is None else _KINDS[kind.numpy.kind], 8 * kind.itemsize)
    for number, kind in BY_NUMBER.items()
    if number != BYTES
}
_DATATYPES = {codes: number for number, codes in _CODES.items()}

_UNSUPPORTED = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule         "
    "or have `__dlpack__` and `__dlpack_device__` attributes"
)


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, with which a DLManagedTensor begins."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Prototypes of our own: the attributes of ctypes.pythonapi are shared with the whole process.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_get_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _content(capsule: Any) -> _DLTensor:
    address = _get_pointer(capsule, b"dltensor")
    return ctypes.cast(address, ctypes.POINTER(_DLTensor)).contents


class _Holder:
    """The base of an exported array: it keeps the Tensor alive."""

    __slots__ = ("__array_interface__", "_tensor")

    def __init__(self, tensor: object, interface: Dict[str, Any]) -> None:
        self._tensor = tensor
        self.__array_interface__ = interface


class _Capsule:
    """A capsule behind `__dlpack__`, as numpy wants it."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Tuple[int, int]:
        return (CPU, 0)


def export(tensor: object, datatype: int, storage: "np.ndarray[Any, Any]") -> Any:
    """A `dltensor` capsule over `storage`, the memory of `tensor`. Raises TritonModelException for BYTES."""
    if datatype == BYTES:
        raise TritonModelException("DLPack does not have support for string tensors.")
    _require_numpy()
    capsule, _ = _capsule(tensor, datatype, storage.shape, storage.__array_interface__["data"][0])
    return capsule


def export_device(tensor: object, datatype: int, shape: Sequence[int], address: int, device: int) -> Any:
    """A `dltensor` capsule over memory of a GPU, that of `tensor`."""
    _require_numpy()
    capsule, content = _capsule(tensor, datatype, shape, address)
    content.device_type, content.device_id = CUDA, device
    return capsule


def _capsule(tensor: object, datatype: int, shape: Sequence[int], address: int) -> Tuple[Any, _DLTensor]:
    kind = BY_NUMBER[datatype].numpy
    interface = {
        "version": 3,
        "shape": tuple(shape),
        "typestr": "<u2" if kind is None else "|u1" if datatype == BOOL else kind.str,
        # Never marked read-only: numpy refuses to export such memory, and a capsule cannot say it.
        "data": (address, False),
    }
    capsule = np.asarray(_Holder(tensor, interface)).__dlpack__()
    content = _content(capsule)
    content.code, content.bits = _CODES[datatype]
    return capsule, content


def device_of(given: Any) -> Tuple[int, int]:
    """The type and the number of the device of a capsule or of an object with `__dlpack__`. Raises as `imported`."""
    _require_numpy()
    if type(given).__name__ == "PyCapsule":
        content = _checked(given)
        device = (content.device_type, content.device_id)
    elif hasattr(given, "__dlpack__") and hasattr(given, "__dlpack_device__"):
        kind, number = given.__dlpack_device__()
        device = (int(kind), int(number))
    else:
        raise TritonModelException(_UNSUPPORTED)
    _check_device(device[0])
    return device


def imported(given: Any, stream: Optional[int] = None) -> Tuple[int, "np.ndarray[Any, Any]"]:
    """(datatype, array over the memory) of a capsule or of an object with `__dlpack__`; BF16 comes as uint16.

    The array of memory of a GPU must not be read. The work of the object on it goes before that of `stream`. Raises
    TritonModelException for other objects, other devices, tensors that are not contiguous and data types that Triton
    does not have; and what the object's own `__dlpack__` raises.
    """
    device_of(given)
    capsule = given if type(given).__name__ == "PyCapsule" else given.__dlpack__(stream=stream)
    content = _checked(capsule)
    _check_device(content.device_type)
    shape = content.shape[: content.ndim]
    if content.strides and not _in_c_order(shape, content.strides[: content.ndim]):
        raise TritonModelException(
            "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
        )
    datatype = _DATATYPES.get((content.code, content.bits)) if content.lanes == 1 else None
    if datatype is None:
        raise TritonModelException(
            f"DLPack tensor has data type code {content.code}, {content.bits} bits, {content.lanes} lanes, for which "
            "Triton has no data type."
        )
    if datatype in (BF16, BOOL):
        content.code = _UINT
    from_dlpack = getattr(np, "from_dlpack", None) or np._from_dlpack  # type: ignore[attr-defined]
    # For numpy all memory is the CPU's; the memory's own deleter finds the device as it was.
    device = (content.device_type, content.device_id)
    content.device_type, content.device_id = CPU, 0
    array = from_dlpack(_Capsule(capsule))
    content.device_type, content.device_id = device
    return datatype, array.view(np.bool_) if datatype == BOOL else array


def _checked(capsule: Any) -> _DLTensor:
    if not _is_valid(capsule, b"dltensor"):
        raise TritonModelException(
            "The DLPack capsule cannot be used: it has been consumed already, or its name is not 'dltensor'."
        )
    return _content(capsule)


def _check_device(device_type: int) -> None:
    if device_type not in (CPU, CUDA, CUDA_HOST):
        raise TritonModelException(f"DLDevice type {device_type} is not support by Python backend.")


def _in_c_order(shape: List[int], strides: List[int]) -> bool:
    """Whether the strides (in elements) are in C order. A dimension of size one, and an empty tensor, may have any."""
    expected = 1
    for axis in reversed(range(len(shape))):
        if shape[axis] != 1 and strides[axis] != expected:
            return 0 in shape
        expected *= shape[axis]
    return True


def _require_numpy() -> None:
    if not hasattr(np.ndarray, "__dlpack__"):
        raise TritonModelException(
            f"DLPack needs numpy 1.22 or later in the model's environment; this is {np.__version__}."
        )
