"""The body of `generate`: a JSON object whose members are inputs where the model has one of that name, else parameters.

Upstream's rules and texts. A member "parameters" is one more such object inside.
"""

from __future__ import annotations

from typing import Any

from stubserve.errors import ServeError, internal, invalid
from stubserve.inference.admission import duplicate_input
from stubserve.inference.request import Request, unanswered
from stubserve.inference.signature import Accepts, TensorSignature
from stubserve.protocols.http import json_data
from stubserve.protocols.http.json_values import UNSET, as_string, find, is_int, parse_json, repeated_names
from stubserve.protocols.placement import Placer

NESTED = "parameters"


def decode_generate(body: bytes, signature: Accepts, placer: Placer) -> Request:
    """The request, not yet admitted; its tensors hold their blocks. Raises ServeError, and then nothing is held."""
    document = parse_json(body)
    if not isinstance(document, dict):
        raise internal("attempt to get members for non-object")
    request = Request([], unanswered)
    id = find(document, "id")
    if id is not UNSET:
        request.id = as_string(id, "id")
    parameters: dict[str, Any] = {}
    try:
        _refuse_repeated(document, request, signature)
        for name, value in document.items():
            if name != NESTED:
                _take(request, parameters, name, value, signature, placer)
                continue
            if NESTED in signature.inputs:
                raise invalid(f"Keyword '{NESTED}' for nested schema also given as input tensor name")
            if not isinstance(value, dict):
                raise internal(
                    f"Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object as object"
                )
            try:
                _refuse_repeated(value, request, signature)
                for inner, inner_value in value.items():
                    _take(request, parameters, inner, inner_value, signature, placer)
            except ServeError as error:
                raise ServeError(error.code, f"Converting keyword: '{NESTED}': {error.message}") from None
    except BaseException:
        placer.undo()
        raise
    request.parameters = parameters or None
    return request


def _refuse_repeated(document: dict[str, Any], request: Request, signature: Accepts) -> None:
    """An input may come once; of parameters with one name the first counts."""
    for name in sorted(repeated_names(document)):
        if name in signature.inputs:
            raise duplicate_input(request, name)


def _take(
    request: Request, parameters: dict[str, Any], name: str, value: Any, signature: Accepts, placer: Placer
) -> None:
    known = signature.inputs.get(name)
    if known is not None:
        if request.inputs and any(tensor.name == name for tensor in request.inputs):
            raise duplicate_input(request, name)
        elements = value if isinstance(value, list) else [value]
        shape = _shape(known, len(elements), signature)
        data = json_data.read(name, known.datatype, elements, len(elements))
        tensor = placer.put(name, known.datatype, shape, data)
        if known.is_bytes and value is not elements:
            tensor.strings = 1
        request.inputs.append(tensor)
    elif isinstance(value, str | bool) or is_int(value):
        parameters[name] = value
    elif isinstance(value, int | float):
        parameters[name] = float(value)
    else:
        raise invalid(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _shape(known: TensorSignature, count: int, signature: Accepts) -> tuple[int, ...]:
    """The input's shape for `count` elements: the last variable dimension, from the right, takes what is left."""
    shape = [-1, *known.dims] if signature.max_batch_size else list(known.dims)
    left = count
    for size in shape:
        if size > 0:
            left, rest = divmod(left, size)
            if rest:
                left = -1
                break
    for at in range(len(shape) - 1, -1, -1):
        if shape[at] == -1 and left >= 0:
            shape[at], left = left, 1
    if left != 1:
        raise invalid(f"The schema can not convert input '{known.name}' to tensor with proper shape")
    return tuple(shape)
