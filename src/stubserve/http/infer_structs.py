"""The types of a usual inference request, and the decoder that makes a request's objects of JSON, all at once.

They allow no other members, no other kinds of values, no null. Elements of `data` stay text. The types are apart from
`infer_document`, which is compiled: msgspec inspects these classes as they are made.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

# A dimension, a number of bytes or of classes
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
# To upstream a larger parameter is not an integer
Integer = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]


class InputParameters(Struct, forbid_unknown_fields=True, gc=False):
    """Parameters of an input with bytes that follow the JSON."""

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


decode = msgspec.json.Decoder(InferDocument).decode
