"""Expected strings are those of Triton 2.51 for the same tensors."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import pytest
from stubserve_stub.wire.datatypes import BY_NAME

from stubserve.errors import Code, ServeError
from stubserve.inference import classification
from stubserve.inference.long_work import finish
from stubserve.inference.tensor import Tensor

LABELS = ["zero", "one", "", "three"]


def tensor(kind: str, shape: list[int], values: list[float]) -> Tensor:
    return Tensor("OUT", BY_NAME[kind].number, shape, np.array(values, BY_NAME[kind].numpy).tobytes())


def texts(found: Tensor) -> list[str]:
    data = bytes(found.buffer)
    elements = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        elements.append(data[4 : 4 + length].decode())
        data = data[4 + length :]
    return elements


def classify(given: Tensor, count: int, batching: bool, labels: Sequence[str] = ()) -> Tensor:
    return finish(classification.classify(given, count, batching, labels))


def test_labels() -> None:
    found = classify(tensor("FP32", [1, 5], [0.1, 5, -3, 2, 100]), 3, True, LABELS)
    assert (found.name, found.datatype_name, found.shape) == ("OUT", "BYTES", (1, 3))
    assert texts(found) == ["100.000000:4", "5.000000:1:one", "2.000000:3:three"]


def test_more_classes_than_elements() -> None:
    found = classify(tensor("FP32", [2, 5], [0.1, 5, -3, 2, 100, 1, 2, 3, 4, 5]), 10, True, LABELS)
    assert found.shape == (2, 5)
    assert texts(found)[3:6] == ["0.100000:0:zero", "-3.000000:2", "5.000000:4"]


def test_without_batching() -> None:
    found = classify(tensor("FP32", [4], [1, 2, 3, 4]), 2, False)
    assert found.shape == (2,)
    assert texts(found) == ["4.000000:3", "3.000000:2"]


def test_several_dimensions_count_as_one() -> None:
    found = classify(tensor("INT32", [1, 2, 3], [1, 5, 3, 4, 2, 6]), 2, True)
    assert texts(found) == ["6:5", "5:1"]


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        ("UINT64", [2**64 - 1, 5], ["18446744073709551615:0", "5:1"]),
        ("INT64", [-(2**63), 5], ["5:1", "-9223372036854775808:0"]),
        ("FP64", [1e-9, -2.5], ["0.000000:0", "-2.500000:1"]),
        ("FP32", [1, 1, 1], ["1.000000:0", "1.000000:1", "1.000000:2"]),
    ],
)
def test_values(kind: str, values: list[float], expected: list[str]) -> None:
    # 2**64 - 1 is no double: the array is made of integers, not through floats.
    assert texts(classify(tensor(kind, [1, len(values)], values), 9, True)) == expected


def test_nothing_to_classify() -> None:
    # 2.51 dies of this one.
    found = classify(tensor("FP32", [0], []), 2, False)
    assert (found.shape, found.data) == ((0,), b"")


@pytest.mark.parametrize("kind", ["BOOL", "FP16", "BF16", "BYTES"])
def test_types_without_an_order(kind: str) -> None:
    with pytest.raises(ServeError) as caught:
        classify(Tensor("OUT", BY_NAME[kind].number, [1, 0], b""), 1, True)
    assert caught.value.code == Code.INVALID_ARG
    assert caught.value.message == f"class result not available for output due to unsupported type '{kind}'"


def test_too_many_elements() -> None:
    with pytest.raises(ServeError, match=r"^classification output tensor too large$"):
        classify(Tensor("OUT", 2, [1, 1_000_001], bytes(1_000_001)), 1, True)


def test_bytes_that_do_not_fill_the_shape() -> None:
    with pytest.raises(ServeError, match=r"^output tensor shape does not match size of output for 'OUT'$"):
        classify(Tensor("OUT", 11, [1, 3], bytes(8)), 1, True)


@pytest.mark.parametrize("kind", ["FP32", "INT8", "UINT64"])
@pytest.mark.parametrize("count", [1, 5, 100, 999, 1000])
def test_the_greatest_are_those_of_a_whole_sort(kind: str, count: int) -> None:
    random = np.random.default_rng(7)
    for spread in (3, 100):  # many equal values, and few
        values = random.integers(0, spread, 1000).astype(BY_NAME[kind].numpy)
        if kind == "FP32":
            values[::50] = np.nan
        found = [
            int(text.split(":")[1]) for text in texts(classify(tensor(kind, [1000], values.tolist()), count, False))
        ]
        order = np.argsort(values[::-1], kind="stable")[::-1][:count]
        assert found == (999 - order).tolist()
