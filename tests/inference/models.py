"""Signatures of models, from the text of their configuration."""

from __future__ import annotations

from collections.abc import Sequence

from stubserve.inference.request import Request, unanswered
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


def request(*inputs: Tensor, **fields: object) -> Request:
    return Request(list(inputs), unanswered, **fields)  # type: ignore[arg-type]


def zeros(name: str, shape: Sequence[int], datatype: int = 11, itemsize: int = 4) -> Tensor:
    """A tensor whose bytes fill its shape."""
    count = itemsize
    for size in shape:
        count *= size
    return Tensor(name, datatype, shape, bytes(count))
