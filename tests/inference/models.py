"""Signatures of models, from the text of their configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stubserve_stub.wire.options import RequestOptions

from stubserve.inference.request import Request
from stubserve.inference.signature import Signature
from stubserve.inference.tensor import Tensor
from stubserve.model_config.parse import parse_text


def io(way: str, name: str, datatype: str, dims: str, more: str = "") -> str:
    return f'{way} {{ name: "{name}" data_type: TYPE_{datatype} dims: [{dims}] {more} }}\n'


def signature(name: str, config: str) -> Signature:
    return Signature(name, 1, parse_text(config, "config.pbtxt"))


def echo(name: str, datatype: str, dims: str, more: str = "") -> Signature:
    """One input IN, one output OUT of the same kind."""
    return signature(name, io("input", "IN", datatype, dims) + io("output", "OUT", datatype, dims) + more)


def request(*inputs: Tensor, **fields: Any) -> Request:
    """A request; `fields` are its options and arguments of its constructor by name, and what becomes of it."""
    options = {name: fields.pop(name) for name in RequestOptions._fields if name in fields}
    becoming = {name: fields.pop(name) for name in ("admitted", "batch_size", "client", "trace") if name in fields}
    made = Request(list(inputs), options=RequestOptions(**options), **fields)
    for name, value in becoming.items():
        setattr(made, name, value)
    return made


def zeros(name: str, shape: Sequence[int], datatype: int = 11, itemsize: int = 4) -> Tensor:
    """A tensor whose bytes fill its shape."""
    count = itemsize
    for size in shape:
        count *= size
    return Tensor(name, datatype, shape, bytes(count))
