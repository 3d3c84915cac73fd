"""A whole batch as one array, and back: `execute` gets a list of requests, and most models want an array.

The rows of a batch are those of its requests, in order. The array of a single request is its own memory, that of
several is a copy.
"""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

import numpy as np

from stubserve_stub.api.exceptions import TritonModelException
from stubserve_stub.api.requests import InferenceRequest
from stubserve_stub.api.responses import InferenceResponse
from stubserve_stub.api.tensors import Array, Tensor


def stack(requests: Sequence[InferenceRequest], name: str, pad: Any = None) -> Array:
    """The input `name` of all requests as one array: their arrays joined along the first dimension.

    Shapes [2, 3] and [1, 3] give [3, 3]. BYTES are objects of type `bytes`. Requests whose shapes differ behind the
    first dimension (a model with `allow_ragged_batch`) need a value for `pad`, which fills them up at the end of each
    dimension; `tensor.shape()` still tells what each had. The array may be written to, and its memory may be that of
    the inputs.

    Raises TritonModelException, naming the request: the input is missing, has no dimension, or does not fit the others.

    Triton does not have this function. A model that is to run there too says, for inputs of one shape::

        stack = getattr(pb_utils, "stack", None) or (lambda requests, name: np.concatenate(
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]))
    """
    if not requests:
        raise TritonModelException("stack: there are no requests")
    arrays = [_input(requests, index, name).as_numpy() for index in range(len(requests))]
    first = arrays[0]
    for index, array in enumerate(arrays):
        if not array.ndim:
            raise TritonModelException(
                f"stack: input '{name}' of {_named(requests, index)} has no dimension along which to join"
            )
        if array.dtype != first.dtype or array.ndim != first.ndim:
            raise _misfit(requests, arrays, index, name, "")
        if pad is None and array.shape[1:] != first.shape[1:]:
            raise _misfit(requests, arrays, index, name, "; give a value for `pad` to fill them up")
    if len(arrays) == 1:
        return first
    if any(array.shape[1:] != first.shape[1:] for array in arrays):
        return _padded(arrays, pad)
    return np.concatenate(arrays)


def unstack(requests: Sequence[InferenceRequest], outputs: Mapping[str, Array]) -> List[InferenceResponse]:
    """One response per request with its rows of each of the `outputs` (arrays by name), without a copy.

    A request has as many rows as its inputs have, which must agree in that. An element of the list may be replaced
    before it is returned, by an error for instance.

    Raises TritonModelException: an array has not as many rows as all requests together, or the inputs of a request
    disagree; TypeError: an output is no array.

    Triton does not have this function. A model that is to run there too joins with `np.concatenate` and takes apart::

        ends = np.cumsum([request.inputs()[0].shape()[0] for request in requests])[:-1]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", rows)]) for rows in np.split(array, ends)]
    """
    rows = [_rows(requests, index) for index in range(len(requests))]
    for name, array in outputs.items():
        if not isinstance(array, np.ndarray):
            raise TypeError(f"unstack: output '{name}' is no numpy array but {type(array)}")
        if not array.ndim or array.shape[0] != sum(rows):
            raise TritonModelException(
                f"unstack: output '{name}' has shape {list(array.shape)}, but the requests have {sum(rows)} rows "
                f"together: {rows}"
            )
    responses = []
    start = 0
    for count in rows:
        tensors = [Tensor(name, array[start : start + count]) for name, array in outputs.items()]
        responses.append(InferenceResponse(tensors))
        start += count
    return responses


def _input(requests: Sequence[InferenceRequest], index: int, name: str) -> Tensor:
    inputs = requests[index]._inputs
    for tensor in inputs:
        if tensor._name == name:
            return tensor
    raise TritonModelException(
        f"stack: {_named(requests, index)} has no input '{name}', only "
        f"{[tensor._name for tensor in inputs] or 'none at all'}"
    )


def _rows(requests: Sequence[InferenceRequest], index: int) -> int:
    shapes = {tensor._name: list(tensor._shape) for tensor in requests[index]._inputs}
    counts = {shape[0] if shape else None for shape in shapes.values()}
    count = counts.pop() if len(counts) == 1 else None
    if count is None:
        raise TritonModelException(
            f"unstack: the inputs of {_named(requests, index)} do not say how many rows it has: their shapes are "
            f"{shapes}"
        )
    return count


def _named(requests: Sequence[InferenceRequest], index: int) -> str:
    request_id = requests[index].request_id()
    return f"request {index} of {len(requests)}" + (f" (id '{request_id}')" if request_id else "")


def _misfit(
    requests: Sequence[InferenceRequest], arrays: List[Array], index: int, name: str, advice: str
) -> TritonModelException:
    first, other = arrays[0], arrays[index]
    return TritonModelException(
        f"stack: input '{name}' cannot be joined: {_named(requests, 0)} has {first.dtype} of shape "
        f"{list(first.shape)}, {_named(requests, index)} has {other.dtype} of shape {list(other.shape)}{advice}"
    )


def _padded(arrays: List[Array], pad: Any) -> Array:
    rows = sum(len(array) for array in arrays)
    shape = [max(sizes) for sizes in zip(*(array.shape[1:] for array in arrays))]
    joined: Array = np.full([rows, *shape], pad, arrays[0].dtype)
    start = 0
    for array in arrays:
        joined[(slice(start, start + len(array)), *(slice(size) for size in array.shape[1:]))] = array
        start += len(array)
    return joined
