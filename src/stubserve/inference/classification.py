"""The classification extension: an output as its top classes instead of its numbers."""

# Compiled by mypyc.
from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
from stubserve_stub.wire import strings
from stubserve_stub.wire.datatypes import BF16, BOOL, BY_NUMBER, BYTES, FP16

from stubserve.errors import internal, invalid
from stubserve.inference.long_work import LongWork
from stubserve.inference.tensor import Tensor

MAX_ELEMENTS = 1_000_000

# How many texts are made in one step.
_TEXTS = 256

_UNSUPPORTED = frozenset((BOOL, FP16, BF16, BYTES))


def classify(tensor: Tensor, count: int, batching: bool, labels: Sequence[str] = ()) -> LongWork[Tensor]:
    """The `count` greatest elements of each batch item, as BYTES `<value>:<index>[:<label>]`, greatest first.

    The result has shape [batch, min(count, elements)], without the batch where the model has none (`batching`).
    Upstream's sort leaves the order of equal values open; here the lower index comes first.
    Raises ServeError (INVALID_ARG) for types without an order, and for more than a million elements per item.
    """
    if tensor.datatype in _UNSUPPORTED:
        raise invalid(
            f"class result not available for output due to unsupported type '{BY_NUMBER[tensor.datatype].name}'"
        )
    has_batch = batching and len(tensor.shape) > 0 and tensor.shape[0] > 0
    batch_size = tensor.shape[0] if has_batch else 1
    elements = prod(tensor.shape[1:] if has_batch else tensor.shape)
    if elements > MAX_ELEMENTS:
        raise invalid("classification output tensor too large")
    count = min(count, elements)
    shape = (batch_size, count) if has_batch else (count,)
    if not count:
        return Tensor(tensor.name, BYTES, shape, b"")
    kind = BY_NUMBER[tensor.datatype]
    if tensor.nbytes != batch_size * elements * kind.itemsize:
        raise internal(f"output tensor shape does not match size of output for '{tensor.name}'")
    items = np.frombuffer(tensor.buffer, kind.numpy).reshape(batch_size, elements)
    # One piece that grows: thousands of small ones would leave holes in the heap.
    joined = bytearray()
    for values in items:
        greatest = yield partial(_greatest, values, count)
        for start in range(0, count, _TEXTS):
            texts = [
                _class_text(values[index].item(), index, labels) for index in greatest[start : start + _TEXTS].tolist()
            ]
            joined += strings.join(texts)
            yield None
    return Tensor(tensor.name, BYTES, shape, bytes(joined))


def _greatest(values: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    """The indices of the `count` greatest values, greatest first, the lower of equal ones first; NaN is greatest."""
    if count < len(values) // 8:
        # Sort only values not below the last chosen one. With equal values these may be more than `count`.
        least = np.partition(values, len(values) - count)[len(values) - count]
        (among,) = (~(values < least)).nonzero()
    else:
        among = np.arange(len(values))
    # Sort backwards and read backwards: then the stable sort keeps equal values in their order.
    chosen = values[among]
    ascending = np.argsort(chosen[::-1], kind="stable")[::-1][:count]
    found: np.ndarray[Any, Any] = among[len(chosen) - 1 - ascending]
    return found


def _class_text(value: object, index: int, labels: Sequence[str]) -> bytes:
    """`value` is a float or an int. With the annotation `float`, compiled code would turn an int into a float."""
    number = f"{value:.6f}" if isinstance(value, float) else str(value)
    label = labels[index] if index < len(labels) else ""
    return (f"{number}:{index}:{label}" if label else f"{number}:{index}").encode()
