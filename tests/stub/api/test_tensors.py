"""Tensors: what a model makes, what arrives, and when memory of the arena is free again."""

from __future__ import annotations

import copy
import gc
import mmap
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api import bytes_tensor
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.tensors import Tensor

FP32 = 11
BYTES = 13
BF16 = 14


class Memory:
    """A piece of shared memory with a tensor in it, as the arena has them."""

    def __init__(self, content: bytes, offset: int = 64) -> None:
        self._map = mmap.mmap(-1, offset + len(content))
        self._view = memoryview(self._map)
        self._view[offset:] = content
        self._offset = offset

    def view(self) -> memoryview:
        return self._view[self._offset :]

    def bytes(self) -> bytes:
        return bytes(self.view())


FLOATS = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.fixture
def memory() -> Memory:
    return Memory(FLOATS.tobytes())


def arena_tensor(memory: Memory, datatype: int = FP32, shape: tuple[int, ...] = (3, 4)) -> Tensor:
    return Tensor._received("IN", datatype, shape, None, memory.view())


def address(array: Any) -> int:
    return int(np.asarray(array).__array_interface__["data"][0])


# Made by a model


def test_only_positional() -> None:
    with pytest.raises(TypeError):
        Tensor(name="a", array=np.zeros(1))  # type: ignore[call-arg]


def test_name_of_unfit_bytes() -> None:
    with pytest.raises(UnicodeDecodeError):
        Tensor(b"\xff", np.zeros(1))  # type: ignore[arg-type]


def test_name_of_a_bytearray() -> None:
    assert Tensor(bytearray(b"name"), np.zeros(1)).name() == "name"  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies_and_no_pickles(make: Callable[[Tensor], Any]) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        make(Tensor("T", np.zeros(1)))


def test_payload_is_the_array() -> None:
    array = np.zeros((2, 3), np.int16)
    datatype, shape, buffer = Tensor("a", array)._payload()
    assert (datatype, tuple(shape)) == (7, (2, 3))
    assert buffer is array


def test_payload_of_a_strided_array_is_contiguous() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3).T
    _, shape, buffer = Tensor("a", array)._payload()
    assert tuple(shape) == (3, 2)
    assert bytes(memoryview(buffer).cast("B")) == array.tobytes("C")


def test_payload_of_a_subclass_is_plain() -> None:
    masked = np.ma.masked_array(np.arange(3), mask=[True, False, False])
    _, _, buffer = Tensor("a", masked)._payload()
    assert type(buffer) is np.ndarray
    assert buffer.tolist() == [0, 1, 2]


def test_bytes_are_serialised_at_once() -> None:
    array = np.array([b"one", "two"], dtype=object)
    tensor = Tensor("a", array)
    array[0] = b"changed"
    datatype, shape, buffer = tensor._payload()
    assert (datatype, tuple(shape)) == (BYTES, (2,))
    assert bytes_tensor.decode(buffer) == [b"one", b"two"]
    assert tensor.as_numpy() is array


def test_made_tensors_are_not_watched() -> None:
    assert Tensor("a", np.zeros(1))._watch() is None
    assert Tensor("a", np.array([b"a"]))._watch() is None


# Received in the message


def test_inline() -> None:
    tensor = Tensor._received("IN", FP32, (3, 4), FLOATS.tobytes(), None)
    array = tensor.as_numpy()
    assert (tensor.name(), tensor.shape(), tensor.triton_dtype(), tensor.is_cpu()) == ("IN", [3, 4], FP32, True)
    assert array.dtype == np.float32
    assert array.tolist() == FLOATS.tolist()
    assert array is tensor.as_numpy()
    array += 1
    assert tensor._watch() is None
    assert memoryview(tensor._payload()[2]).cast("B") == (FLOATS + 1).tobytes()


def test_inline_untouched_goes_back_as_it_came() -> None:
    data = FLOATS.tobytes()
    assert Tensor._received("IN", FP32, (3, 4), data, None)._payload()[2] is data


@pytest.mark.parametrize(
    ("datatype", "shape", "data"), [(FP32, (), b"\0\0\x80\x3f"), (FP32, (0, 3), b""), (1, (2,), b"\1\0")]
)
def test_inline_of_all_shapes(datatype: int, shape: tuple[int, ...], data: bytes) -> None:
    array = Tensor._received("IN", datatype, shape, data, None).as_numpy()
    assert array.shape == shape
    assert array.tobytes() == data
    assert array.flags.writeable


@pytest.mark.parametrize("in_arena", [False, True])
def test_received_bytes(in_arena: bool) -> None:
    elements = [b"a", b"", b"xyz\0", b"b"]
    blob = bytes_tensor.encode(bytes_tensor.object_array(elements))
    memory = Memory(blob)
    tensor = Tensor._received("IN", BYTES, (2, 2), None if in_arena else blob, memory.view() if in_arena else None)
    array = tensor.as_numpy()
    assert array.tolist() == [elements[:2], elements[2:]]
    array[0, 0] = b"mine"
    assert bytes(tensor._payload()[2]) == blob
    assert array is tensor.as_numpy()


def test_malformed_bytes_are_found_when_looked_at() -> None:
    tensor = Tensor._received("IN", BYTES, (1,), b"\x05\0\0\0ab", None)
    assert bytes(tensor._payload()[2]) == b"\x05\0\0\0ab"
    with pytest.raises(TritonModelException, match="Invalid bytes tensor data: string extends beyond buffer"):
        tensor.as_numpy()


def test_bf16_has_an_array_where_ml_dtypes_is(memory: Memory) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    tensor = Tensor._received("IN", BF16, (2,), b"\x80\x3f\0\x40", None)
    array = tensor.as_numpy()
    assert (array.dtype, array.tolist()) == (ml_dtypes.bfloat16, [1.0, 2.0])
    assert tensor.as_numpy() is array
    array[0] = 3
    assert bytes(tensor._payload()[2]) == b"\x40\x40\0\x40"


def test_bf16_is_not_copied() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.array([[1.5, -2]], ml_dtypes.bfloat16)
    tensor = Tensor("OUT", array)
    datatype, shape, storage = tensor._payload()
    assert (datatype, shape, bytes(storage)) == (BF16, (1, 2), b"\xc0\x3f\0\xc0")
    assert tensor.as_numpy() is array
    assert np.shares_memory(np.frombuffer(storage, np.uint16), array)
    region = np.zeros(4, np.uint8)
    received = Tensor._of_region("IN", BF16, (2,), region)
    assert np.shares_memory(received.as_numpy(), region)


def test_text_becomes_bytes() -> None:
    """Triton refuses arrays of numpy's text types, and takes the same text as objects."""
    arrays = [np.array([["a", "münchen"]])]
    if hasattr(np.dtypes if hasattr(np, "dtypes") else np, "StringDType"):
        arrays.append(np.array([["a", "münchen"]], np.dtypes.StringDType()))
    for array in arrays:
        tensor = Tensor("OUT", array)
        assert (tensor.triton_dtype(), tensor.shape()) == (BYTES, [1, 2])
        assert bytes(tensor._payload()[2]) == b"\x01\0\0\0a\x08\0\0\0m\xc3\xbcnchen"


def test_bf16_has_no_array_without_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = Tensor._received("IN", BF16, (2,), b"\x80\x3f\0\x40", None)
    with pytest.raises(TritonModelException) as raised:
        tensor.as_numpy()
    assert str(raised.value) == (
        "Tensor dtype is BF16 and cannot be converted to NumPy. Use to_dlpack() and from_dlpack() instead. "
        "as_numpy() needs the package ml_dtypes in the model's environment."
    )
    assert tensor._payload()[2] == b"\x80\x3f\0\x40"


# Received in the arena


def test_arena_is_not_copied(memory: Memory) -> None:
    tensor = arena_tensor(memory)
    array = tensor.as_numpy()
    assert address(array) == address(memory.view())
    assert array.shape == (3, 4)
    assert array is tensor.as_numpy()
    array[0, 0] = 99
    assert memory.bytes()[:4] == np.float32(99).tobytes()
    assert address(tensor._payload()[2]) == address(memory.view())


def test_arena_untouched_goes_back_as_it_came(memory: Memory) -> None:
    view = memory.view()
    tensor = Tensor._received("IN", FP32, (3, 4), None, view)
    assert tensor._payload()[2] is view


def test_unaligned_memory_is_copied() -> None:
    memory = Memory(FLOATS.tobytes(), offset=65)
    tensor = arena_tensor(memory)
    array = tensor.as_numpy()
    assert array.tolist() == FLOATS.tolist()
    assert address(array) != address(memory.view())
    assert tensor._watch() is None
    array[0, 0] = 99
    assert memoryview(tensor._payload()[2]).cast("B") == array.tobytes()


def watched(memory: Memory, take: Callable[[Tensor], Any]) -> tuple[weakref.ref[Any], Any]:
    """What `take` keeps of a tensor that is gone otherwise, and the tensor's watch."""
    tensor = arena_tensor(memory)
    taken = take(tensor)
    watch = tensor._watch()
    assert watch is not None
    return watch, taken


@pytest.mark.parametrize(
    "take",
    [
        lambda tensor: tensor.as_numpy(),
        lambda tensor: tensor.as_numpy()[1],
        lambda tensor: tensor.as_numpy()[:, ::2],
        lambda tensor: tensor.as_numpy().reshape(-1)[3:].T,
        lambda tensor: tensor.as_numpy().T,
        lambda tensor: tensor.as_numpy().view(np.int32).ravel(),
        lambda tensor: np.asarray(tensor.as_numpy()),
        lambda tensor: np.broadcast_to(tensor.as_numpy(), (2, 3, 4)),
        lambda tensor: memoryview(tensor.as_numpy()),
        lambda tensor: memoryview(tensor.as_numpy()[1:])[0:1],
        lambda tensor: np.frombuffer(memoryview(tensor.as_numpy()), np.uint8),
        lambda tensor: iter(tensor.as_numpy()),
        lambda tensor: {"kept": [tensor.as_numpy().flat]},
        lambda tensor: tensor.to_dlpack(),
        lambda tensor: np.from_dlpack(tensor),
        lambda tensor: np.from_dlpack(tensor)[1:],
        lambda tensor: Tensor.from_dlpack("again", tensor),
        lambda tensor: Tensor.from_dlpack("again", tensor.to_dlpack()).to_dlpack(),
        lambda tensor: Tensor("again", tensor.as_numpy()),
        lambda tensor: tensor,
        lambda tensor: (tensor.as_numpy(), tensor.to_dlpack()),
    ],
)
def test_watch_lives_as_long_as_what_was_taken(memory: Memory, take: Callable[[Tensor], Any]) -> None:
    watch, taken = watched(memory, take)
    gc.collect()
    assert watch() is not None
    del taken
    assert watch() is None


@pytest.mark.parametrize(
    "take",
    [
        lambda tensor: None,
        lambda tensor: tensor.as_numpy().copy(),
        lambda tensor: tensor.as_numpy() + 1,
        lambda tensor: tensor.as_numpy().tolist(),
        lambda tensor: tensor.as_numpy()[[0, 2]],
        lambda tensor: float(tensor.as_numpy()[0, 0]),
        lambda tensor: bytes(tensor.as_numpy()),
        lambda tensor: tensor.as_numpy().sum(axis=0),
        lambda tensor: Tensor.from_dlpack("copy", tensor).as_numpy(),
        lambda tensor: tensor.name(),
        lambda tensor: tensor.shape(),
    ],
)
def test_watch_dies_when_only_copies_were_taken(memory: Memory, take: Callable[[Tensor], Any]) -> None:
    watch, _taken = watched(memory, take)
    assert watch() is None


def test_tensor_kept_without_a_look_can_be_looked_at_later(memory: Memory) -> None:
    watch, tensor = watched(memory, lambda tensor: tensor)
    array = tensor.as_numpy()
    del tensor
    assert watch() is not None
    assert array.tolist() == FLOATS.tolist()
    del array
    assert watch() is None


def test_watch_of_bytes_is_the_tensor_alone() -> None:
    blob = bytes_tensor.encode(bytes_tensor.object_array([b"a", b"b"]))
    memory = Memory(blob)
    tensor = arena_tensor(memory, BYTES, (2,))
    decoded = tensor.as_numpy()
    watch = tensor._watch()
    assert watch is not None
    assert watch() is not None
    del tensor
    assert watch() is None
    assert decoded.tolist() == [b"a", b"b"]


def test_watch_of_views_in_a_cycle(memory: Memory) -> None:
    def cycle(tensor: Tensor) -> None:
        kept: list[Any] = [tensor.as_numpy()[1:]]
        kept.append(kept)

    gc.collect()
    gc.disable()
    try:
        watch, _ = watched(memory, cycle)
        assert watch() is not None
    finally:
        gc.enable()
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("consume", ["from_numpy", "from_dlpack", "as_tensor"])
def test_watch_of_torch(memory: Memory, consume: str) -> None:
    torch = pytest.importorskip("torch")

    def take(tensor: Tensor) -> Any:
        given = tensor if consume == "from_dlpack" else tensor.as_numpy()
        return getattr(torch, consume)(given)[1:]

    watch, taken = watched(memory, take)
    assert taken.tolist() == FLOATS[1:].tolist()
    assert watch() is not None
    derived = taken.view(-1)[2:]
    del taken
    assert watch() is not None
    del derived
    assert watch() is None
