"""DLPack capsules out of tensors and into them."""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

import numpy as np
import pytest
from stubserve_stub.api import dlpack
from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.tensors import Tensor

BF16 = 14
DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]


def bf16(values: int = 3) -> Tensor:
    """1.0, 1.0, ... in BF16."""
    return Tensor._received("B", BF16, (values,), b"\x80\x3f" * values, None)


def described(capsule: Any) -> tuple[int, int, int, int, list[int]]:
    content = dlpack._content(capsule)
    return content.device_type, content.code, content.bits, content.lanes, content.shape[: content.ndim]


class Exporter:
    """An object with a capsule of numpy's, changed by the test."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0), **changes: Any) -> None:
        self.capsule = array.__dlpack__()
        for name, value in changes.items():
            setattr(dlpack._content(self.capsule), name, value)
        self.device = device

    def __dlpack__(self, stream: Any = None) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


# Export


@pytest.mark.parametrize("dtype", DTYPES)
def test_export(dtype: str) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    code = {"?": 6, "u": 1, "i": 0, "f": 2}[dtype[0]]
    capsule = Tensor("a", array).to_dlpack()
    assert described(capsule) == (1, code, array.itemsize * 8, 1, [2, 2])
    assert dlpack._content(capsule).data == array.__array_interface__["data"][0]


def test_export_bf16() -> None:
    assert described(bf16().to_dlpack()) == (1, 4, 16, 1, [3])


@pytest.mark.parametrize("array", [np.array(2.5), np.zeros((0, 3)), np.zeros((2, 0, 3), bool)])
def test_export_of_all_shapes(array: np.ndarray) -> None:
    assert described(Tensor("a", array).to_dlpack())[4] == list(array.shape)
    assert np.from_dlpack(Tensor("a", array)).shape == array.shape


def test_export_of_a_read_only_array() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert np.from_dlpack(Tensor("a", array)).tolist() == [0, 1, 2]


def test_export_of_a_large_array_is_a_view() -> None:
    array = np.arange(1000)
    consumed = np.from_dlpack(Tensor("a", array))
    array[5] = -1
    assert consumed[5] == -1


def test_capsule_holds_one_reference() -> None:
    tensor = Tensor("a", np.arange(3))
    before = sys.getrefcount(tensor)
    capsules = [tensor.to_dlpack() for _ in range(3)]
    assert sys.getrefcount(tensor) == before + 3
    del capsules
    assert sys.getrefcount(tensor) == before


def test_consumer_holds_one_reference() -> None:
    tensor = Tensor("a", np.arange(3))
    before = sys.getrefcount(tensor)
    consumer = np.from_dlpack(tensor)
    part = consumer[1:]
    assert sys.getrefcount(tensor) == before + 1
    del consumer
    assert sys.getrefcount(tensor) == before + 1
    del part
    assert sys.getrefcount(tensor) == before


def test_capsule_dies_while_an_exception_passes() -> None:
    tensor = Tensor("a", np.arange(3))
    before = sys.getrefcount(tensor)

    def model() -> None:
        capsule = tensor.to_dlpack()
        raise ValueError(f"kept {capsule is not None}")

    with pytest.raises(ValueError, match=r"^kept True$"):
        model()
    gc.collect()
    assert sys.getrefcount(tensor) == before


def test_strings_cannot_be_exported() -> None:
    with pytest.raises(TritonModelException, match=r"^DLPack does not have support for string tensors\.$"):
        Tensor("a", np.array([b"a"])).to_dlpack()


# Import


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("as_capsule", [False, True])
def test_import(dtype: str, as_capsule: bool) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    given = Tensor("a", array)
    tensor = Tensor.from_dlpack("b", given.to_dlpack() if as_capsule else given)
    assert tensor.shape() == [2, 2]
    assert tensor.as_numpy().dtype == array.dtype
    assert tensor.as_numpy().tolist() == array.tolist()
    assert tensor.as_numpy() is tensor.as_numpy()
    datatype, _, buffer = tensor._payload()
    assert datatype == given.triton_dtype()
    assert memoryview(buffer).tobytes() == array.tobytes()


def test_import_is_a_view_and_its_array_a_copy() -> None:
    array = np.arange(4)
    tensor = Tensor.from_dlpack("b", array)
    copy = tensor.as_numpy()
    copy[0] = 99
    array[1] = -1
    assert array[0] == 0
    assert copy.tolist() == [99, 1, 2, 3]
    assert memoryview(tensor._payload()[2]).tobytes() == array.tobytes()


def test_import_keeps_its_producer() -> None:
    given = Tensor("a", np.arange(3))
    before = sys.getrefcount(given)
    tensor = Tensor.from_dlpack("b", given)
    assert sys.getrefcount(given) == before + 1
    capsule = tensor.to_dlpack()
    del tensor
    assert sys.getrefcount(given) == before + 1
    del capsule
    assert sys.getrefcount(given) == before


def test_import_bf16_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    tensor = Tensor.from_dlpack("b", bf16())
    assert tensor.triton_dtype() == BF16
    assert memoryview(tensor._payload()[2]).tobytes() == b"\x80\x3f" * 3
    assert described(tensor.to_dlpack()) == (1, 4, 16, 1, [3])
    with pytest.raises(TritonModelException, match="Tensor dtype is BF16"):
        tensor.as_numpy()


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3).T, np.arange(6)[::2], np.arange(6).reshape(2, 3)[:, :2], np.arange(3)[::-1]]
)
def test_strided_memory_is_refused(array: np.ndarray) -> None:
    before = sys.getrefcount(array)
    with pytest.raises(TritonModelException) as raised:
        Tensor.from_dlpack("a", array)
    assert str(raised.value) == (
        "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
    )
    del raised
    gc.collect()
    assert sys.getrefcount(array) == before


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(1, 6).T, np.zeros((3, 0)).T, np.arange(6).reshape(3, 2)[:1, :1], np.array(1.5)]
)
def test_strides_of_single_elements_do_not_matter(array: np.ndarray) -> None:
    assert Tensor.from_dlpack("a", array).shape() == list(array.shape)


def test_capsule_is_consumed_once() -> None:
    capsule = Tensor("a", np.arange(3)).to_dlpack()
    Tensor.from_dlpack("b", capsule)
    with pytest.raises(TritonModelException, match="it has been consumed already"):
        Tensor.from_dlpack("c", capsule)


def test_host_memory_of_cuda_is_cpu_memory() -> None:
    tensor = Tensor.from_dlpack("a", Exporter(np.arange(3), (dlpack.CUDA_HOST, 0), device_type=dlpack.CUDA_HOST))
    assert tensor.as_numpy().tolist() == [0, 1, 2]
    assert tensor.__dlpack_device__() == (1, 0)


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (
            dlpack.CUDA,
            "The DLPack tensor is in GPU memory, and the server has no GPU for its models: copy it to the CPU",
        ),
        (10, "DLDevice type 10 is not support by Python backend."),
    ],
)
def test_other_devices(device: int, text: str) -> None:
    for given in (
        Exporter(np.arange(3), (device, 0)),
        Exporter(np.arange(3), device_type=device).capsule,
    ):
        with pytest.raises(TritonModelException) as raised:
            Tensor.from_dlpack("a", given)
        assert str(raised.value).startswith(text)


def test_types_that_triton_does_not_have() -> None:
    for given in (np.array([1j]), Exporter(np.arange(4), lanes=4), Exporter(np.arange(4), bits=4)):
        with pytest.raises(TritonModelException, match="for which Triton has no data type"):
            Tensor.from_dlpack("a", given)


def test_error_of_the_producer_passes() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    with pytest.raises(BufferError):
        Tensor.from_dlpack("a", array)


def test_prototypes_are_not_shared() -> None:
    assert ctypes.pythonapi.PyCapsule_GetPointer.argtypes is None


# torch


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64"])
def test_torch_both_ways(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    given = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=getattr(torch, dtype))
    tensor = Tensor.from_dlpack("a", given)
    assert tensor.as_numpy().tolist() == given.tolist()
    back = torch.from_dlpack(tensor)
    assert back.dtype == given.dtype
    assert back.data_ptr() == given.data_ptr()
    assert torch.utils.dlpack.from_dlpack(tensor.to_dlpack()).tolist() == given.tolist()


def test_torch_bf16() -> None:
    torch = pytest.importorskip("torch")
    received = bf16()
    tensor = torch.from_dlpack(received)
    assert tensor.dtype == torch.bfloat16
    assert tensor.tolist() == [1.0, 1.0, 1.0]
    tensor *= 2
    back = Tensor.from_dlpack("b", tensor)
    assert memoryview(back._payload()[2]).tobytes() == b"\0\x40" * 3
    assert back.triton_dtype() == BF16


def test_torch_keeps_and_releases_the_tensor() -> None:
    torch = pytest.importorskip("torch")
    tensor = Tensor("a", np.arange(3))
    before = sys.getrefcount(tensor)
    consumer = torch.from_dlpack(tensor)
    assert sys.getrefcount(tensor) == before + 1
    del consumer
    assert sys.getrefcount(tensor) == before


def test_torch_strided() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(TritonModelException, match="DLPack tensor is not contiguous"):
        Tensor.from_dlpack("a", torch.zeros(2, 3).T)
