"""The JSON of an inference request as typed objects, made by msgspec in one go: under a microsecond for two inputs.

The types say what a usual request is made of, and nothing else is let in: no other members, no other kinds of values,
no null. Whatever does not fit is None here, and is for `infer_json` to read, which knows upstream's rules for the odd
and upstream's words for the wrong. What fits means the same to both, but for names that occur twice in one object:
msgspec takes the last of them, upstream the first. So the members that were read are counted, and have to be as many
as the text has colons outside of strings. Elements of `data` stay text, so that they are easily set apart.
A name that was dropped leaves a colon behind, whatever its value was, so no such text can pass.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from stubserve.protocols.http.json_values import ESCAPED_COLON

# A dimension, a number of bytes or of classes
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
# What is larger is no integer to upstream, where it is a parameter
Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class InputParameters(Struct, forbid_unknown_fields=True, gc=False):
    """Parameters of an input whose bytes follow the JSON."""

    binary_data_size: Size


class Input(Struct, forbid_unknown_fields=True, gc=False):
    """An input, with `data` or with `parameters`."""

    name: str
    datatype: str
    shape: tuple[Size, ...]
    data: Raw = Raw(b"")
    parameters: InputParameters | UnsetType = UNSET


class OutputParameters(Struct, forbid_unknown_fields=True, gc=False):
    """How an output is wanted."""

    binary_data: bool | UnsetType = UNSET
    classification: Size | UnsetType = UNSET


class Output(Struct, forbid_unknown_fields=True, gc=False):
    """A requested output."""

    name: str
    parameters: OutputParameters | UnsetType = UNSET


class InferDocument(Struct, forbid_unknown_fields=True, gc=False):
    """A request."""

    inputs: list[Input]
    id: str | UnsetType = UNSET
    parameters: dict[str, bool | Integer | float | str] | UnsetType = UNSET
    outputs: list[Output] | UnsetType = UNSET


_decode = msgspec.json.Decoder(InferDocument).decode
# From this length on it pays to look for colons in what is not data only
_LONG = 1024
# So much of an input's data is looked for in a text
_FRONT = 32


def read(text: bytes) -> InferDocument | None:
    """The request in a JSON text; None where it is not a usual one, or none at all."""
    try:
        document = _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    members = _members(document)
    if len(text) < _LONG and text.count(b":") == members:
        return document
    frame = _without_data(text, document)
    colons = frame.count(b":")
    if colons == members or (colons > members and _colons_outside_strings(frame, document, colons) == members):
        return document
    return None


def _members(document: InferDocument) -> int:
    """How many members of objects were read."""
    count = 1
    for item in document.inputs:
        count += 3
        if item.data:
            count += 1
        if item.parameters is not UNSET:
            count += 2
    if document.id is not UNSET:
        count += 1
    if document.parameters is not UNSET:
        count += 1 + len(document.parameters)
    if document.outputs is not UNSET:
        count += 1
        for output in document.outputs:
            count += 1
            parameters = output.parameters
            if parameters is not UNSET:
                count += 1 + (parameters.binary_data is not UNSET) + (parameters.classification is not UNSET)
    return count


def _without_data(text: bytes, document: InferDocument) -> bytes:
    """A text less the elements of its inputs, which is nearly all of a long one.

    What is cut out may lie before an input's own place, but only if it reads the same, so the same characters are left.
    """
    pieces = []
    at = 0
    for item in document.inputs:
        data = bytes(item.data)
        if data:
            start = text.find(data[:_FRONT], at)
            if not text.startswith(data, start):
                start = text.find(data, start)
            pieces.append(text[at:start])
            at = start + len(data)
    pieces.append(text[at:])
    return b"".join(pieces)


def _colons_outside_strings(frame: bytes, document: InferDocument, colons: int) -> int:
    """How many of the colons in a text without data are not in the strings that were read.

    -1 where one may be escaped, for then a string can have more of them than its text.
    """
    if ESCAPED_COLON in frame:
        return -1
    for item in document.inputs:
        colons -= item.name.count(":")
    if document.id is not UNSET:
        colons -= document.id.count(":")
    if document.parameters is not UNSET:
        for name, value in document.parameters.items():
            colons -= name.count(":")
            if isinstance(value, str):
                colons -= value.count(":")
    if document.outputs is not UNSET:
        for output in document.outputs:
            colons -= output.name.count(":")
    return colons
