"""A batch as one array and back, on requests as a stub receives them."""

from __future__ import annotations

import textwrap
import types
from typing import Any

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Tensor

FP32 = 11
BIG = 4096  # elements of a row too large for a message


def request(*arrays: np.ndarray, name: str = "IN", id: str = "") -> InferenceRequest:
    names = [name, *"ABC"]
    return InferenceRequest(id, 0, [Tensor(*pair) for pair in zip(names, arrays, strict=False)], ["OUT"], "model")


def rows(count: int, width: int = 2) -> np.ndarray:
    return np.arange(count * width, dtype=np.float32).reshape(count, width)


def in_memory(memory: bytearray, offset: int, count: int) -> InferenceRequest:
    """A request with `count` rows of a tensor that lies in `memory`, as one in the arena does."""
    view = memoryview(memory)[offset : offset + count * BIG * 4]
    return InferenceRequest("", 0, [Tensor._received("IN", FP32, [count, BIG], None, view)], ["OUT"], "model")


def outputs(responses: list[InferenceResponse], name: str = "OUT") -> list[np.ndarray]:
    found = [pb_utils.get_output_tensor_by_name(response, name) for response in responses]
    return [tensor.as_numpy() for tensor in found if tensor is not None]


def test_rows_of_all_requests_and_back() -> None:
    requests = [request(rows(2)), request(rows(0)), request(rows(1) + 10)]
    batch = pb_utils.stack(requests, "IN")
    assert batch.dtype == np.float32
    assert batch.tolist() == [[0, 1], [2, 3], [10, 11]]
    batch += 1
    responses = pb_utils.unstack(requests, {"OUT": batch, "MORE": batch[:, 0]})
    assert [array.tolist() for array in outputs(responses)] == [[[1, 2], [3, 4]], [], [[11, 12]]]
    assert [array.tolist() for array in outputs(responses, "MORE")] == [[1, 3], [], [11]]
    assert all(np.shares_memory(array, batch) for array in outputs(responses) if array.size)


def test_strings() -> None:
    requests = [request(np.array([["a"], ["bc"]], np.object_)), request(np.array([[b"d"]]))]
    requests[1] = InferenceRequest(
        inputs=[Tensor._received("IN", 13, [1, 1], b"\1\0\0\0d", None)], requested_output_names=[], model_name="m"
    )
    requests[0] = InferenceRequest(
        inputs=[Tensor._received("IN", 13, [2, 1], b"\1\0\0\0a\2\0\0\0bc", None)],
        requested_output_names=[],
        model_name="m",
    )
    batch = pb_utils.stack(requests, "IN")
    assert batch.tolist() == [[b"a"], [b"bc"], [b"d"]]
    assert [array.tolist() for array in outputs(pb_utils.unstack(requests, {"OUT": batch}))] == [
        [[b"a"], [b"bc"]],
        [[b"d"]],
    ]


def test_the_array_of_one_request_is_its_own_memory() -> None:
    memory = bytearray(2 * BIG * 4)
    alone = in_memory(memory, 0, 2)
    batch = pb_utils.stack([alone], "IN")
    batch[1] = 7
    assert np.frombuffer(memory, np.float32)[BIG] == 7


def test_inputs_of_several_requests_are_copied() -> None:
    memory = bytearray(4 * BIG * 4)
    side_by_side = [in_memory(memory, 0, 1), in_memory(memory, BIG * 4, 1)]
    for requests in (side_by_side, side_by_side[::-1]):
        batch = pb_utils.stack(requests, "IN")
        assert batch.shape == (2, BIG)
        batch[:] = 5
        assert not any(memory)


@pytest.mark.parametrize(
    ("requests", "text"),
    [
        ([], "stack: there are no requests"),
        (
            [request(rows(1)), request(rows(1), id="r", name="OTHER")],
            "stack: request 1 of 2 (id 'r') has no input 'IN', only ['OTHER']",
        ),
        ([request()], "stack: request 0 of 1 has no input 'IN', only none at all"),
        (
            [request(np.array(1, np.float32))],
            "stack: input 'IN' of request 0 of 1 has no dimension along which to join",
        ),
        (
            [request(rows(1, 2)), request(rows(3, 4))],
            "stack: input 'IN' cannot be joined: request 0 of 2 has float32 of shape [1, 2], request 1 of 2 has "
            "float32 of shape [3, 4]; give a value for `pad` to fill them up",
        ),
        (
            [request(rows(1)), request(rows(1)[0])],
            "stack: input 'IN' cannot be joined: request 0 of 2 has float32 of shape [1, 2], request 1 of 2 has "
            "float32 of shape [2]",
        ),
        (
            [request(rows(1)), request(rows(1).astype(np.int8))],
            "stack: input 'IN' cannot be joined: request 0 of 2 has float32 of shape [1, 2], request 1 of 2 has "
            "int8 of shape [1, 2]",
        ),
    ],
)
def test_what_cannot_be_stacked(requests: list[InferenceRequest], text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as raised:
        pb_utils.stack(requests, "IN")
    assert str(raised.value) == text


def test_padding() -> None:
    requests = [request(rows(1, 3)), request(rows(2, 1))]
    assert pb_utils.stack(requests, "IN", pad=-1).tolist() == [[0, 1, 2], [0, -1, -1], [1, -1, -1]]
    words = [request(np.array([["a"]], np.object_)), request(np.array([["b", "c"]], np.object_))]
    assert pb_utils.stack(words, "IN", pad=b"").tolist() == [["a", b""], ["b", "c"]]


@pytest.mark.parametrize(
    ("requests", "array", "text"),
    [
        (
            [request(rows(2)), request(rows(1))],
            rows(2),
            "unstack: output 'OUT' has shape [2, 2], but the requests have 3 rows together: [2, 1]",
        ),
        (
            [request(rows(2), rows(1))],
            rows(2),
            "unstack: the inputs of request 0 of 1 do not say how many rows it has: their shapes are "
            "{'IN': [2, 2], 'A': [1, 2]}",
        ),
        (
            [request()],
            rows(2),
            "unstack: the inputs of request 0 of 1 do not say how many rows it has: their shapes are {}",
        ),
    ],
)
def test_what_cannot_be_taken_apart(requests: list[InferenceRequest], array: np.ndarray, text: str) -> None:
    with pytest.raises(pb_utils.TritonModelException) as raised:
        pb_utils.unstack(requests, {"OUT": array})
    assert str(raised.value) == text


def test_only_arrays_are_taken_apart() -> None:
    with pytest.raises(TypeError, match="unstack: output 'OUT' is no numpy array but <class 'list'>"):
        pb_utils.unstack([request(rows(1))], {"OUT": [[1, 2]]})  # type: ignore[dict-item]


def test_as_real_triton_would_without_them() -> None:
    """The recipes in the docstrings give the same."""
    requests = [request(rows(2)), request(rows(1) + 10)]
    names: dict[str, Any] = {"np": np, "requests": requests, "pb_utils": types.SimpleNamespace(**vars(pb_utils))}
    del names["pb_utils"].stack
    exec(recipe(pb_utils.stack), names)
    joined = names["stack"](requests, "IN")
    assert joined.tolist() == pb_utils.stack(requests, "IN").tolist()
    names["array"] = joined
    exec(recipe(pb_utils.unstack).replace("return", "responses ="), names)
    expected = outputs(pb_utils.unstack(requests, {"OUT": joined}))
    assert [array.tolist() for array in outputs(names["responses"], "OUTPUT0")] == [
        array.tolist() for array in expected
    ]


def recipe(function: Any) -> str:
    return textwrap.dedent(function.__doc__.split("::\n\n")[1].rstrip())
