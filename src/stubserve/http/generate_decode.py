"""The body of `generate`: a JSON object. A member is an input if the model has an input of that name, else a parameter.

The texts are upstream's. A member "parameters" is an object of the same kind inside. The rules for parameters are those
of inference: upstream passes `sequence_id`, `priority` and names of its own on to the model here.
"""

# Compiled by mypyc.
from __future__ import annotations

from math import inf, prod
from typing import Any

from stubserve_stub.wire.datatypes import BY_NUMBER
from stubserve_stub.wire.options import NO_OPTIONS

from stubserve.api.placement import Placer
from stubserve.errors import ServeError, invalid, malformed
from stubserve.http.infer_document import read_parameters
from stubserve.http.json import text as json_text
from stubserve.http.json.values import UNSET, as_string, find, is_int, parse_json, repeated_names
from stubserve.inference.admission import duplicate_input
from stubserve.inference.request import Request
from stubserve.inference.signature import InputSignature, TensorSignature
from stubserve.inference.tensor import Tensor

NESTED = "parameters"


def decode_generate(
    body: bytes | dict[str, Any], signature: InputSignature, placer: Placer, most_odd: float = inf
) -> Request:
    """The request, not yet admitted; its tensors hold their blocks. If it raises ServeError, nothing is held.

    `body` may be the object itself. Raises OddJson as `parse_json`, for more than `most_odd` bytes.
    """
    document = parse_json(body, most_odd) if isinstance(body, bytes) else body
    if not isinstance(document, dict):
        raise malformed("attempt to get members for non-object")
    id = find(document, "id")
    id = "" if id is UNSET else as_string(id, "id")
    inputs: list[Tensor] = []
    parameters: dict[str, Any] = {}
    try:
        _refuse_repeated(document, id, signature)
        for name in document:
            if name != NESTED:
                _take(id, inputs, parameters, name, document, signature, placer)
                continue
            if NESTED in signature.inputs:
                raise invalid(f"Keyword '{NESTED}' for nested schema also given as input tensor name")
            value = document[NESTED]
            if not isinstance(value, dict):
                raise malformed(
                    f"Expected JSON object for keyword: '{NESTED}': attempt to access JSON non-object as object"
                )
            try:
                _refuse_repeated(value, id, signature)
                for inner in value:
                    _take(id, inputs, parameters, inner, value, signature, placer)
            except ServeError as error:
                raise ServeError(error.code, f"Converting keyword: '{NESTED}': {error.message}") from None
        options = read_parameters(parameters)[0] if parameters else NO_OPTIONS
    except BaseException:
        placer.undo()
        raise
    return Request(inputs, id, options)


def _refuse_repeated(document: dict[str, Any], id: str, signature: InputSignature) -> None:
    """Refuses an input that is given twice. Of parameters with the same name the first counts."""
    for name in sorted(repeated_names(document)):
        if name in signature.inputs:
            raise duplicate_input(id, name)


def _take(
    id: str,
    inputs: list[Tensor],
    parameters: dict[str, Any],
    name: str,
    members: dict[str, Any],
    signature: InputSignature,
    placer: Placer,
) -> None:
    """Takes one of the `members` of an object as an input or a parameter. Raises ServeError."""
    value = members[name]
    known = signature.inputs.get(name)
    if known is not None:
        if inputs and any(tensor.name == name for tensor in inputs):
            raise duplicate_input(id, name)
        elements = value if isinstance(value, list) else [value]
        shape = _rows(known, elements, signature) or _shape(known, len(elements), signature)
        data = json_text.read(name, known.datatype, elements, prod(shape))
        tensor = placer.put(name, known.datatype, shape, data)
        if known.is_bytes and value is not elements:
            tensor.strings = 1
        inputs.append(tensor)
    elif isinstance(value, str | bool) or is_int(value):
        parameters[name] = value
    elif isinstance(value, int | float):
        parameters[name] = float(value)
    else:
        text = f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'."
        given = {*members, *(tensor.name for tensor in inputs)}
        if all(one.optional or one.name in given for one in signature.inputs.values()):
            raise invalid(text)
        # An input is missing, so this member may be that input under a wrong name.
        known_ones = (f"'{one.name}' ({BY_NUMBER[one.datatype].name})" for one in signature.inputs.values())
        raise invalid(f"{text} The inputs of model '{signature.model}' are {', '.join(known_ones)}.")


def _rows(known: TensorSignature, elements: list[Any], signature: InputSignature) -> tuple[int, ...] | None:
    """The shape that nested lists have; None if the input may not have it.

    Upstream takes flat lists, and nested lists in which each list has one element, which it reads as a flat list.
    """
    shape = []
    inner: Any = elements
    while isinstance(inner, list):
        shape.append(len(inner))
        inner = inner[0] if inner else None
    expected = [-1, *known.dims] if signature.max_batch_size else list(known.dims)
    if len(shape) != len(expected) or prod(shape) == len(elements):
        return None
    fits = all(size in (-1, given) for given, size in zip(shape, expected, strict=True))
    return tuple(shape) if fits else None


def _shape(known: TensorSignature, count: int, signature: InputSignature) -> tuple[int, ...]:
    """The input's shape for `count` elements: the rightmost variable dimension takes all that the others leave."""
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
