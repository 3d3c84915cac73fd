"""The types that a usual inference request is made of, and the decoder that makes it of JSON, all at once.

Nothing else is let in: no other members, no other kinds of values, no null. Elements of `data` stay text. They are
apart from `infer_document`, which is compiled: msgspec looks at these classes as they are made.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

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


decode = msgspec.json.Decoder(InferDocument).decode
