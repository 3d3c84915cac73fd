"""Answers of `generate`: one flat JSON object per response, with the outputs and parameters as members."""

# Compiled by mypyc.
from __future__ import annotations

import functools
from math import prod

from stubserve.http.compression import Place
from stubserve.http.infer_encode import (
    ELSEWHERE,
    LARGE_OUTPUT,
    in_parts,
    is_long_text,
    json_array,
    json_array_steps,
)
from stubserve.http.json import text as json_text
from stubserve.inference.long_work import LongWork
from stubserve.inference.request import Request, Response
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor


def encode_document(request: Request, response: Response, signature: Signature, is_long: bool = False) -> bytes:
    """A response as a flat JSON object, members in alphabetical order. Raises ServeError where JSON has no form for it.

    With `is_long` a mark stands in the place of each output.
    """
    outputs = response.outputs
    if len(outputs) == 1 and not response.parameters:
        # Nearly all responses have one output and nothing else.
        tensor = outputs[0]
        value = ELSEWHERE if is_long else _value(tensor)
        id = json_text.string(request.id) if request.id else b""
        return _form(signature.model, signature.version, tensor.name, bool(id)) % {b"value": value, b"id": id}
    members = _members(request, response, signature)
    for tensor in outputs:
        members[tensor.name] = ELSEWHERE if is_long else _value(tensor)
    return b"{%b}" % b",".join([b"%b:%b" % (_string(name), members[name]) for name in sorted(members)])


@functools.lru_cache(maxsize=1024)
def _form(model: str, version: int, output: str, has_id: bool) -> bytes:
    """The JSON of a response with one output, with places for its value and the request's id."""
    members = _fixed_members(model, version)
    members = {name: value.replace(b"%", b"%%") for name, value in members.items()}
    if has_id:
        members["id"] = b"%(id)b"
    members[output] = b"%(value)b"
    return b"{%b}" % b",".join(
        [b"%b:%b" % (_string(name).replace(b"%", b"%%"), members[name]) for name in sorted(members)]
    )


def document_steps(
    request: Request, response: Response, signature: Signature, place: Place
) -> LongWork[list[bytes | memoryview]]:
    """As `encode_document`, in pieces that are made in steps; `place` says where each lies. Raises ServeError."""
    first, *others = encode_document(request, response, signature, is_long=True).split(ELSEWHERE)
    pieces: list[bytes | memoryview] = [first]
    for tensor, behind in zip(sorted(response.outputs, key=_name), others, strict=True):
        pieces += yield from in_parts(json_array_steps(tensor, prod(tensor.shape) != 1), place)
        pieces.append(behind)
    return pieces


def _name(tensor: Tensor) -> str:
    return tensor.name


def _value(tensor: Tensor) -> bytes:
    """An output as a member's value: a list, or the element itself if there is one."""
    array = json_array(tensor)
    return array[1:-1] if prod(tensor.shape) == 1 else array


def _members(request: Request, response: Response, signature: Signature) -> dict[str, bytes]:
    """All members but the outputs."""
    members = _fixed_members(signature.model, signature.version)
    if request.id:
        members["id"] = json_text.string(request.id)
    for name, value in (response.parameters or {}).items():
        members[name] = json_text.scalar(value)
    return members


def _fixed_members(model: str, version: int) -> dict[str, bytes]:
    return {"model_name": _string(model), "model_version": b'"%d"' % version}


def is_large(response: Response) -> bool:
    """Whether a response should be encoded in steps."""
    # A plain loop: this runs for every event of a stream, which mostly has one output.
    for tensor in response.outputs:  # noqa: SIM110
        if tensor.nbytes > LARGE_OUTPUT and is_long_text(tensor):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _string(text: str) -> bytes:
    return json_text.string(text)
